import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import react from "@vitejs/plugin-react";
import { build, type Plugin } from "vite";
import { defineConfig } from "vitest/config";

const TARGET = ["chrome120", "firefox120", "safari17.4"];

// The built page is served at any depth below any prefix: every link in it is relative, and the manager fills in the way
// to its root (manager/api/routes/dashboard.py). Nothing is inlined: the manager's Content-Security-Policy forbids it.
export default defineConfig({
  base: "./",
  plugins: [react(), savedPage()],
  build: {
    outDir: "../manager/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: TARGET,
    reportCompressedSize: false,
  },
  server: {
    // `npm run dev` beside a running manager: PROCTOR_URL and PROCTOR_TOKEN name it.
    proxy: {
      "/api": {
        target: process.env.PROCTOR_URL ?? "http://127.0.0.1:8080",
        headers: { Authorization: `Bearer ${process.env.PROCTOR_TOKEN ?? ""}` },
      },
    },
  },
  test: { environment: "happy-dom", include: ["tests/**/*.test.{ts,tsx}"] },
});

/** The same page in one file, `saved.html`, into which `proctor experiment export` puts the data. It allows itself nothing else. */
function savedPage(): Plugin {
  let folder = "";
  return {
    name: "saved-page",
    apply: "build",
    configResolved: (config) => {
      folder = resolve(config.root, config.build.outDir);
    },
    closeBundle: async () => {
      const built = await build({
        configFile: false,
        logLevel: "error",
        plugins: [react()],
        build: {
          write: false,
          target: TARGET,
          cssCodeSplit: false,
          modulePreload: false,
          reportCompressedSize: false,
          rolldownOptions: { input: "src/main.tsx", output: { format: "iife", codeSplitting: false } },
        },
      });
      const files = [built].flat().flatMap((each) => ("output" in each ? each.output : []));
      const script = files
        .map((file) => (file.type === "chunk" ? file.code : ""))
        .join("")
        .replaceAll("</script", "<\\/script");
      const style = files
        .map((file) => (file.type === "asset" && file.fileName.endsWith(".css") ? file.source : ""))
        .join("");
      writeFileSync(resolve(folder, "saved.html"), documentOf(script, style));
    },
  };
}

function documentOf(script: string, style: string): string {
  const hash = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  // What scripts set on an element's style is not bound by a policy; of what is inline, only these two are allowed.
  const policy = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data: blob:; base-uri 'none'; form-action 'none'`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Proctor</title>
<style>${style}</style>
</head>
<body>
<div id="page"></div>
<script type="application/octet-stream" id="snapshot"></script>
<script>${script}</script>
</body>
</html>
`;
}
