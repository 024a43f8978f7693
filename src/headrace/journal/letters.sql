-- Queries on dead letters, each with a name and a sentence on what it is for.

-- name: letters
-- Dead letters after a number, oldest first; filters that are NULL let all pass.  The last column says whether
-- the letter before it, redriven, had died for the same reason.
SELECT dead.id, handler.name, dead.tp, dead.seq, dead.eid, dead.type, dead.reason, dead.code, dead.error,
dead.traceback, dead.attempts, dead.crashes, dead.errors, dead.generation, dead.version, dead.head, dead.body,
dead.died_us, dead.fate, coalesce(event.depth, 0),
CASE WHEN replay.sub IS NULL THEN '' WHEN side IS NULL THEN 'live topics' ELSE 'side ' || side END,
EXISTS (SELECT 1 FROM dead AS earlier WHERE earlier.sub = dead.sub AND earlier.seq = dead.seq
        AND earlier.generation = dead.generation - 1 AND earlier.reason = dead.reason AND earlier.code = dead.code)
FROM dead JOIN subscription ON subscription.id = dead.sub JOIN handler ON handler.id = subscription.handler
LEFT JOIN event ON event.seq = dead.seq LEFT JOIN replay ON replay.sub = dead.sub
WHERE dead.id > ?1 AND (?2 IS NULL OR handler.name = ?2 OR handler.name GLOB '*.' || ?2)
AND (?3 IS NULL OR dead.reason = ?3) AND (?4 IS NULL OR dead.type = ?4) AND (?5 OR dead.fate IS NULL)
ORDER BY dead.id LIMIT ?6;
-- name: numbers_of_event
-- Dead letters of an event.
SELECT id FROM dead WHERE seq = ? ORDER BY id;
-- name: number_at
-- The dead letter of one subscription and offset that counts: the last one, unless it was redriven.
SELECT id FROM dead WHERE sub = ? AND seq = ? AND (fate IS NULL OR fate <> 'redriven') ORDER BY generation DESC LIMIT 1;
-- name: left
-- Dead letters that nobody has decided on.
SELECT count(*) FROM dead WHERE fate IS NULL;
