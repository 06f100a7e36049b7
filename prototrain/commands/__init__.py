"""The commands of `prototrain`, a module each: `add(commands)` declares its arguments and sets `command`, what runs it."""
