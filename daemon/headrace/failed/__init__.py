"""Messages that a sink refuses for good: set aside, stored, and sent again later, in order."""
