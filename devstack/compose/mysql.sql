-- The accounts of devstack for the mysql container (root comes from its environment).
SET sql_log_bin = 0;
CREATE USER canal@'%' IDENTIFIED BY 'canal';
GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO canal@'%';
GRANT BINLOG_ADMIN ON *.* TO canal@'%';
GRANT ALL ON headrace.* TO canal@'%';
