"""The file of whisper.cpp."""
