"""The configuration: loading, references, value languages, and the sections that no adapter owns."""
