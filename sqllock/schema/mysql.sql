-- Version 1 of the tables that package sqllock works with, for MySQL 8 and MariaDB 10.2 or newer. Times are µs since 1970, of the
-- server's clock. Names and owners are binary, so that no collation treats two names as equal.

-- One row for each name that was ever locked. Rows are never deleted, because they keep the token.
CREATE TABLE IF NOT EXISTS holdfast_lock (
	name    varbinary(512) NOT NULL PRIMARY KEY,
	stamp   bigint NOT NULL,         -- random, new at each change: a statement that names an older stamp changes nothing
	token   bigint NOT NULL,         -- first token of the last grant
	owner   varbinary(255) NOT NULL, -- owner of the lock; empty: none; ending in !: the owner has released the lock, and MinHold keeps it until it expires
	holder  mediumblob NOT NULL,     -- description of the owner for people, as JSON
	since   bigint NOT NULL,         -- time of the grant
	expires bigint NOT NULL,         -- end of the lease
	places  bigint NOT NULL          -- number of places that the queue has given out
) ENGINE = InnoDB;

-- One row for each waiting attempt.
CREATE TABLE IF NOT EXISTS holdfast_ticket (
	name    varbinary(512) NOT NULL,
	owner   varbinary(255) NOT NULL,
	place   bigint NOT NULL,         -- position in the queue, in the order of arrival
	holder  mediumblob NOT NULL,
	expires bigint NOT NULL,         -- end of the ticket, unless its client polls
	PRIMARY KEY (name, owner),
	INDEX holdfast_ticket_place (name, place),
	INDEX holdfast_ticket_expires (expires)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS holdfast_version (version integer NOT NULL PRIMARY KEY) ENGINE = InnoDB;
INSERT INTO holdfast_version (version) VALUES (1) ON DUPLICATE KEY UPDATE version = 1;
