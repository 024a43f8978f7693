-- The queries of an index in SQLite.

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
-- name: present
-- Whether an id is indexed.
SELECT 1 FROM first WHERE event = ? LIMIT 1;
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
-- Note what a worker has in hand, in place of what it had before; nothing where another has taken over.
INSERT INTO claim (subscription, partition, after, upto, owner) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (subscription, partition) DO UPDATE SET after = excluded.after, upto = excluded.upto
WHERE owner = excluded.owner RETURNING partition;
-- name: claim_get
-- What is in hand of one partition.
SELECT subscription, partition, after, upto, owner FROM claim WHERE subscription = ? AND partition = ?;
-- name: claim_take
-- From now on only claims of this worker count; what was in hand stays until it claims.
INSERT INTO claim (subscription, partition, after, upto, owner) VALUES (?, ?, 0, 0, ?)
ON CONFLICT (subscription, partition) DO UPDATE SET owner = excluded.owner;
-- name: claim_hand_over
-- Nothing is in hand any more, and nobody may claim before it is taken over.
UPDATE claim SET after = 0, upto = 0, owner = '' WHERE subscription = ? AND partition = ? AND owner = ?;
-- name: claims
-- What is in hand.
SELECT subscription, partition, after, upto, owner FROM claim WHERE subscription = ? AND after < upto
ORDER BY partition;
-- name: claim_cut
-- Forget the part of a claim that is closed.
UPDATE claim SET after = ?3, upto = max(upto, ?3) WHERE subscription = ?1 AND partition = ?2 AND after < ?3;
-- name: tried_put
-- Note attempts.
INSERT OR REPLACE INTO tried (subscription, partition, seq, number, crashes) VALUES (?, ?, ?, ?, ?);
-- name: tried
-- The attempts of open offsets.
SELECT seq, number, crashes FROM tried WHERE subscription = ? AND partition = ? ORDER BY seq;
-- name: tried_drop
-- Forget the attempts of closed offsets.
DELETE FROM tried WHERE subscription = ? AND partition = ? AND seq < ?;

-- name: active
-- The active version of a handler, and how far the log of versions is applied: one row in any case.
SELECT (SELECT active FROM handler WHERE name = ?), coalesce((SELECT upto FROM applied), 0);
-- name: versions_upto
-- Which log of versions is applied, and up to where.
SELECT log, upto FROM applied;
-- name: versions_upto_put
-- Note up to where the log of versions is applied.
INSERT OR REPLACE INTO applied (id, log, upto) VALUES (1, ?, ?);
-- name: models_drop
-- Forget all models, before they are written anew.
DELETE FROM model;
-- name: handlers_drop
-- Forget all handlers, before they are written anew.
DELETE FROM handler;
-- name: versions_drop
-- Forget all versions, before they are written anew.
DELETE FROM version;
-- name: model_put
-- Write a model version under its number.
INSERT INTO model (id, name, epoch, declared, digest, offered_us) VALUES (?, ?, ?, ?, ?, ?);
-- name: handler_put
-- Write a handler under its number.
INSERT INTO handler (id, name, active) VALUES (?, ?, ?);
-- name: version_put
-- Write a handler version under its number.
INSERT INTO version (id, handler, declared, model, offered_us) VALUES (?, ?, ?, ?, ?);
