"""The one loop: clocks, certificates, stopping, history, checkpoints; methods supply the rest."""
