"""HTTP: three APIs over one engine. Translators are pure; one thread owns the model."""
