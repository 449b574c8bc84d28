/* A fake libnvidia-ml.so.1: as much of NVML as the keeper asks, with the state read from $FAKE_NVML_STATE at every call.
 *
 * One line a GPU:  uuid used_mb total_mb utilization pid:mb,pid:mb name with spaces      ("-" for no processes)
 * A line "lost" is a GPU that has fallen off the bus. A file that holds "no driver" is a driver that is not loaded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, DRIVER_NOT_LOADED = 9, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, MOST_GPUS = 16 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned int pid; unsigned long long memory; unsigned int gpu_instance, compute_instance; } process_t;
typedef struct { char uuid[96], processes[512], name[96]; unsigned long long used, total; unsigned int load; int lost; } gpu_t;

static int read_state(gpu_t gpus[MOST_GPUS])
{
    char line[1024];
    int count = 0;
    FILE *file = fopen(getenv("FAKE_NVML_STATE") ? getenv("FAKE_NVML_STATE") : "", "r");
    if (!file)
        return -1;
    while (count < MOST_GPUS && fgets(line, sizeof line, file)) {
        gpu_t *gpu = &gpus[count];
        memset(gpu, 0, sizeof *gpu);
        if (!strncmp(line, "no driver", 9)) {
            fclose(file);
            return -1;
        }
        gpu->lost = !strncmp(line, "lost", 4);
        if (gpu->lost || sscanf(line, "%95s %llu %llu %u %511s %95[^\n]", gpu->uuid, &gpu->used, &gpu->total, &gpu->load,
                                gpu->processes, gpu->name) == 6)
            count++;
    }
    fclose(file);
    return count;
}

static int find(void *device, gpu_t *found)
{
    gpu_t gpus[MOST_GPUS];
    int count = read_state(gpus);
    long index = (long)device - 1;
    if (count < 0)
        return DRIVER_NOT_LOADED;
    if (index < 0 || index >= count)
        return NOT_FOUND;
    *found = gpus[index];
    return found->lost ? GPU_IS_LOST : SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags)
{
    gpu_t gpus[MOST_GPUS];
    (void)flags;
    return read_state(gpus) < 0 ? DRIVER_NOT_LOADED : SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    return code == GPU_IS_LOST ? "GPU is lost" : code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    gpu_t gpus[MOST_GPUS];
    int found = read_state(gpus);
    *count = found < 0 ? 0 : (unsigned int)found;
    return found < 0 ? DRIVER_NOT_LOADED : SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    gpu_t gpu;
    *device = (void *)((long)index + 1);
    return find(*device, &gpu);
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned int length)
{
    gpu_t gpu;
    int code = find(device, &gpu);
    if (!code)
        snprintf(text, length, "%s", gpu.uuid);
    return code;
}

int nvmlDeviceGetName(void *device, char *text, unsigned int length)
{
    gpu_t gpu;
    int code = find(device, &gpu);
    if (!code)
        snprintf(text, length, "%s", gpu.name);
    return code;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory)
{
    gpu_t gpu;
    int code = find(device, &gpu);
    memory->total = gpu.total << 20;
    memory->used = gpu.used << 20;
    memory->free = memory->total - memory->used;
    return code;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates)
{
    gpu_t gpu;
    int code = find(device, &gpu);
    rates->gpu = gpu.load;
    rates->memory = 0;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_t *processes)
{
    gpu_t gpu;
    unsigned int room = *count, pid;
    unsigned long long memory;
    int code = find(device, &gpu), length;
    *count = 0;
    if (code || !strcmp(gpu.processes, "-"))
        return code;
    for (char *text = gpu.processes; sscanf(text, "%u:%llu%n", &pid, &memory, &length) == 2; text += length + 1) {
        if (*count < room) {
            process_t process = {pid, memory << 20, 0, 0};
            processes[*count] = process;
        }
        ++*count;
        if (!text[length])
            break;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
