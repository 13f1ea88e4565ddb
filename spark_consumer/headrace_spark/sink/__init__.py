"""What tasks write with: a patient writer, mapping conflicts, and dual writes while an index is rebuilt."""
