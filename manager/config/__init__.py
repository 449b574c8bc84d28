"""An experiment's configuration: NNI's v2 schema (and v1, converted), read, checked and explained.

Entry: `loading.load_experiment`. Reading order: loading, document (YAML and JSON), tree (positions), version1,
operators (NNI's sections for Kubernetes), keys (NNI's other keys), matching and key_names (keys compared), platforms,
sections, validation; then the models: experiment, objective, services, fields; secrets (kept out of the database),
errors, and reference (docs and JSON Schema).
"""
