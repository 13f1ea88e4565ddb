"""The archive: headrace's own copy of a source's binlog, from which any position in it can be read again."""
