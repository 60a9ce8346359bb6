"""Where training runs: devices, the pretraining loop, launchers."""
