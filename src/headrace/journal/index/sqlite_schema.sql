-- The index beside a log, schema 1, in a SQLite file.  Ids are 16 bytes; seq = offset in the partition.

CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID, STRICT;

-- A partition, and the first offset of it that is not indexed yet.
CREATE TABLE place (
    id INTEGER PRIMARY KEY,
    topic BLOB NOT NULL,
    partition INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    UNIQUE (topic, partition)
) STRICT;

-- Where each id was seen first in its partition, what it held, and where in its chain it stands.
CREATE TABLE first (
    event BLOB NOT NULL,
    place INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    content INTEGER NOT NULL,
    root BLOB NOT NULL,
    depth INTEGER NOT NULL,
    PRIMARY KEY (event, place)
) WITHOUT ROWID, STRICT;

-- Records whose id other content has taken in their partition.
CREATE TABLE conflict (place INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (place, seq)) WITHOUT ROWID, STRICT;

-- The topics that apps have used, by the cluster's ids.
CREATE TABLE topic (id BLOB PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID, STRICT;

-- What workers have in hand: offsets from "after" up to, but not with, "upto".
CREATE TABLE claim (
    subscription TEXT NOT NULL,
    partition INTEGER NOT NULL,
    after INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (subscription, partition)
) WITHOUT ROWID, STRICT;

-- How often open offsets were tried.
CREATE TABLE tried (
    subscription TEXT NOT NULL,
    partition INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    number INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    PRIMARY KEY (subscription, partition, seq)
) WITHOUT ROWID, STRICT;

-- Up to where the log of versions is applied: one row, or none.
CREATE TABLE applied (id INTEGER PRIMARY KEY CHECK (id = 1), log BLOB NOT NULL, upto INTEGER NOT NULL) STRICT;

-- Models, handlers and their versions, as they follow from the log of versions.
CREATE TABLE model (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    declared TEXT,
    digest TEXT NOT NULL,
    offered_us INTEGER NOT NULL,
    UNIQUE (name, digest),
    UNIQUE (name, epoch)
) STRICT;

CREATE TABLE handler (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, active INTEGER) STRICT;

CREATE TABLE version (
    id INTEGER PRIMARY KEY,
    handler INTEGER NOT NULL,
    declared TEXT NOT NULL,
    model INTEGER NOT NULL,
    offered_us INTEGER NOT NULL,
    UNIQUE (handler, declared, model)
) STRICT;
