"""A model of a MySQL server, true to its wire protocol, its binlog and its SQL as far as the daemon uses them.

    server = Server(now, random.Random(seed), accounts=[Account("canal", "secret")], binlog_row_metadata="FULL")
    listener = await loop.create_server(server.protocol, "127.0.0.1", 0)

    client = server.session()
    client.ddl("CREATE DATABASE shop")
    client.ddl("CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(20))")
    client.begin()
    client.insert("shop.t", {"id": 1, "v": "a"})
    client.update("shop.t", 1, {"v": "b"})
    client.commit()

    replica = server.replica(lag=lambda: 0.5)
    server.crash(lose=1)
    server.start()
    server.history, server.unknown

All times are UTC: the session's time zone has no effect on values.
"""
