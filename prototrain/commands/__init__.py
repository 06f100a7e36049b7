"""The commands of `prototrain`, a module each: `add(commands)` declares its arguments and what runs it."""
