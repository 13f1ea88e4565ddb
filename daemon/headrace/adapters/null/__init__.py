"""The sink that publishes nowhere, for measuring what comes before a sink."""
