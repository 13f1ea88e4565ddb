-- The accounts of devstack for the mariadb container (root comes from its environment).
SET sql_log_bin = 0;
CREATE USER canal@'%' IDENTIFIED BY 'canal';
GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION MASTER ADMIN, SLAVE MONITOR, BINLOG MONITOR, BINLOG ADMIN ON *.* TO canal@'%';
GRANT ALL ON headrace.* TO canal@'%';
