"""The bump files of C-Kernel-Engine."""
