"""The statements that the model understands: their text, their syntax tree, and what they evaluate to."""
