"""What the consumers share: messages into documents with versions, the bulk writer, and how their files are read."""
