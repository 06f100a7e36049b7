"""The commands of `prototrain`, one per module. `add(commands)` declares a command's arguments and function."""
