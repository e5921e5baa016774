-- Version 1 of the tables that package sqllock works with, for MySQL 8 and MariaDB 10.2 or newer. Times are µs since 1970, of the
-- server's clock. What is compared is binary, so that no collation takes two names for one.

-- A row for each name that was ever locked. Rows stay: they have the token.
CREATE TABLE IF NOT EXISTS holdfast_lock (
	name    varbinary(512) NOT NULL PRIMARY KEY,
	stamp   bigint NOT NULL,         -- drawn anew at each change: a statement that was decided by an older one changes nothing
	token   bigint NOT NULL,         -- the first of those that the last grant has
	owner   varbinary(255) NOT NULL, -- who has the lock; empty: nobody; with a ! at its end: who has released it, and it stands until it lapses (MinHold)
	holder  mediumblob NOT NULL,     -- the same for people, as JSON
	since   bigint NOT NULL,         -- when it was granted
	expires bigint NOT NULL,         -- when it lapses
	places  bigint NOT NULL          -- how many places in the queue were given
) ENGINE = InnoDB;

-- A row for each attempt that waits.
CREATE TABLE IF NOT EXISTS holdfast_ticket (
	name    varbinary(512) NOT NULL,
	owner   varbinary(255) NOT NULL,
	place   bigint NOT NULL,         -- in the order of arrival
	holder  mediumblob NOT NULL,
	expires bigint NOT NULL,         -- when it lapses unless its client polls
	PRIMARY KEY (name, owner),
	INDEX holdfast_ticket_place (name, place),
	INDEX holdfast_ticket_expires (expires)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS holdfast_version (version integer NOT NULL PRIMARY KEY) ENGINE = InnoDB;
INSERT INTO holdfast_version (version) VALUES (1) ON DUPLICATE KEY UPDATE version = 1;
