-- The queries of an index in SQLite; those about versions are the embedded journal's own.

-- name: place_get
-- A partition's number, and up to where it is indexed.
SELECT id, upto FROM place WHERE topic = ? AND partition = ?;
-- name: place_add
-- Begin to index a partition.
INSERT INTO place (topic, partition, upto) VALUES (?, ?, 0) RETURNING id;
-- name: place_upto
-- Note up to where a partition is indexed.
UPDATE place SET upto = ? WHERE id = ?;
-- name: places_drop
-- Forget up to where anything is indexed.
DELETE FROM place;

-- name: first_add
-- Note where ids were seen first, unless they were seen before (the values are repeated by the caller).
INSERT OR IGNORE INTO first (event, place, seq, content, root, depth) VALUES (?, ?, ?, ?, ?, ?);
-- name: first_get
-- Where an id was seen first in a partition.
SELECT seq, content FROM first WHERE event = ? AND place = ?;
-- name: find
-- Where an id lies, in every partition that has it.
SELECT topic, partition, seq, root, depth FROM first JOIN place ON place.id = first.place
WHERE event = ? ORDER BY topic, partition;
-- name: firsts_drop
-- Forget all ids.
DELETE FROM first;
-- name: conflict_add
-- Note a record whose id other content has taken.
INSERT OR IGNORE INTO conflict (place, seq) VALUES (?, ?);
-- name: conflicts_drop
-- Forget those records.
DELETE FROM conflict;
-- name: changes
-- How many rows this connection has written so far: what an insert left out does not count.
SELECT total_changes();

-- name: claim_put
-- Note what a worker has in hand, in place of what was in hand before.
INSERT OR REPLACE INTO claim (subscription, partition, after, upto, owner) VALUES (?, ?, ?, ?, ?);
-- name: claims
-- What is in hand.
SELECT subscription, partition, after, upto, owner FROM claim WHERE subscription = ? ORDER BY partition;
-- name: claim_cut
-- Forget the part of a claim that is closed.
UPDATE claim SET after = ?3 WHERE subscription = ?1 AND partition = ?2 AND after < ?3;
-- name: claim_drop
-- Forget a claim of which nothing is left.
DELETE FROM claim WHERE subscription = ? AND partition = ? AND upto <= ?;

-- name: tried_put
-- Note attempts.
INSERT OR REPLACE INTO tried (subscription, partition, seq, number, crashes) VALUES (?, ?, ?, ?, ?);
-- name: tried
-- The attempts of open offsets.
SELECT seq, number, crashes FROM tried WHERE subscription = ? AND partition = ? ORDER BY seq;
-- name: tried_drop
-- Forget the attempts of closed offsets.
DELETE FROM tried WHERE subscription = ? AND partition = ? AND seq < ?;
