-- Queries that find what belongs to a key, each with a name and a sentence on what it is for.

-- name: of_place
-- A page of the events of one partition, with their envelopes.
SELECT seq, head FROM event WHERE tp >> 10 = ?1 >> 10 AND tp = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3;
-- name: chain_of
-- The first event of the chain of an event, or of what is left of it.
SELECT CASE cid WHEN 0 THEN seq ELSE cid END, eid FROM event WHERE seq = ?1
UNION ALL SELECT CASE cid WHEN 0 THEN seq ELSE cid END, eid FROM skeleton WHERE seq = ?1;
-- name: chain
-- The rest of a chain, and what is left of it, causes before effects; the last column says what is whole.
SELECT seq, tp, eid, head, 1, depth FROM event WHERE cid <> 0 AND cid = ?1
UNION ALL SELECT seq, tp, eid, head, 0, depth FROM skeleton WHERE cid <> 0 AND cid = ?1 ORDER BY depth, seq;
-- name: remains
-- What is left of a key's events in one partition.
SELECT seq FROM skeleton WHERE tp = ? AND owner = ?;
-- name: remains_erase
-- Take from it the hashes of key and payload.
UPDATE skeleton SET content = x'', owner = x'', why = 'erased' WHERE seq IN (SELECT value FROM json_each(?));
-- name: letters_of_place
-- A page of the dead letters of one partition, of all subscriptions, that hold something.
SELECT id, head FROM dead WHERE tp = ? AND id > ? AND length(body) + length(error) + length(traceback) > 0
AND fate IS NOT 'expired'
ORDER BY id LIMIT ?;
-- name: letters_of_event
-- The dead letters of an event that hold something.
SELECT id FROM dead WHERE seq = ? AND length(body) + length(error) + length(traceback) > 0
AND fate IS NOT 'expired';
-- name: letters_erase
-- Take out of dead letters all that they hold; there is nothing left to decide on.
UPDATE dead SET head = ?2, body = x'', error = '', traceback = '', errors = '[]', fate = coalesce(fate, 'dropped')
WHERE id IN (SELECT value FROM json_each(?1)) AND length(body) + length(error) + length(traceback) > 0
AND fate IS NOT 'expired' RETURNING id;
-- name: live
-- The subscriptions that an event matters to, and how far they are in its partition.
SELECT position.sub, position.start, position.high, position.claimed_after,
coalesce(replay.version, handler.active) FROM position
JOIN subscription ON subscription.id = position.sub JOIN handler ON handler.id = subscription.handler
LEFT JOIN replay ON replay.sub = position.sub
WHERE position.tp = ? AND subscription.kind <> 'retired';
-- name: passed_over
-- Of these events, those that a replay was not allotted.
SELECT value FROM json_each(?3) WHERE EXISTS (SELECT 1 FROM replay WHERE sub = ?1) AND coalesce((
    SELECT upto FROM allotted WHERE sub = ?1 AND tp = ?2 AND after < value ORDER BY after DESC LIMIT 1), 0) < value;
-- name: replay_gone
-- Count what a replay had not taken as taken and expired; `remove` does so for live handlers.
UPDATE position SET taken = taken + ?1, expired = expired + ?1 WHERE sub = ?2 AND tp = ?3
AND EXISTS (SELECT 1 FROM replay WHERE replay.sub = ?2);
-- name: open_ones
-- Of these events, those that stand open.
SELECT seq FROM open WHERE sub = ? AND tp = ? AND seq IN (SELECT value FROM json_each(?));
