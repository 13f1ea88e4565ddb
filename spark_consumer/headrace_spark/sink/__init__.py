"""How tasks write: a patient writer, mapping conflicts, and dual writes while an index is rebuilt."""
