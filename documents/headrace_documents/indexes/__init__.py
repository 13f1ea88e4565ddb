"""Tables into documents, as [[index]] declares."""
