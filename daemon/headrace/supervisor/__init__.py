"""The process: destinations as supervised tasks, reload, signals, systemd, logs."""
