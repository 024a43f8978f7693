-- The index beside a log, schema 1, in PostgreSQL: in the first schema of the search path.  seq = offset.

CREATE TABLE headrace_meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO headrace_meta (name, value) VALUES ('schema', '1');

-- A partition, and the first offset of it that is not indexed yet.  One row a partition, written at every
-- look: room in the page keeps the old versions of a row where the new ones are.
CREATE TABLE headrace_place (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic uuid NOT NULL,
    partition integer NOT NULL,
    upto bigint NOT NULL,
    UNIQUE (topic, partition)
) WITH (fillfactor = 20);

-- Where each id was seen first in its partition, what it held, and where in its chain it stands.
CREATE TABLE headrace_first (
    event uuid NOT NULL,
    root uuid NOT NULL,
    seq bigint NOT NULL,
    content bigint NOT NULL,
    place integer NOT NULL,
    depth integer NOT NULL,
    PRIMARY KEY (event, place)
);

-- Records whose id other content has taken in their partition.
CREATE TABLE headrace_conflict (place integer NOT NULL, seq bigint NOT NULL, PRIMARY KEY (place, seq));

-- The topics that apps have used, by the cluster's ids.
CREATE TABLE headrace_topic (id uuid PRIMARY KEY, name text NOT NULL);

-- What workers have in hand: offsets from "after" up to, but not with, "upto".
CREATE TABLE headrace_claim (
    subscription text NOT NULL,
    partition integer NOT NULL,
    after bigint NOT NULL,
    upto bigint NOT NULL,
    owner text NOT NULL,
    PRIMARY KEY (subscription, partition)
) WITH (fillfactor = 20);

-- How often open offsets were tried.
CREATE TABLE headrace_tried (
    subscription text NOT NULL,
    partition integer NOT NULL,
    seq bigint NOT NULL,
    number integer NOT NULL,
    crashes integer NOT NULL,
    PRIMARY KEY (subscription, partition, seq)
);

-- Up to where the log of versions is applied: one row, or none.
CREATE TABLE headrace_applied (id integer PRIMARY KEY DEFAULT 1 CHECK (id = 1), log uuid NOT NULL, upto bigint NOT NULL);

-- Models, handlers and their versions, as they follow from the log of versions.
CREATE TABLE headrace_model (
    id integer PRIMARY KEY,
    name text NOT NULL,
    epoch integer NOT NULL,
    declared text,
    digest text NOT NULL,
    offered_us bigint NOT NULL,
    UNIQUE (name, digest),
    UNIQUE (name, epoch)
);

CREATE TABLE headrace_handler (
    id integer PRIMARY KEY,
    name text NOT NULL UNIQUE,
    active integer
);

CREATE TABLE headrace_version (
    id integer PRIMARY KEY,
    handler integer NOT NULL,
    declared text NOT NULL,
    model integer NOT NULL,
    offered_us bigint NOT NULL,
    UNIQUE (handler, declared, model)
);

-- Indexes stretches and notes claims: one call is one transaction and one way to the server and back.
-- Answers one row for each record that is not the first of its id in its partition, and, for a call with
-- claims, one row without a partition that holds the number of the active version, and up to which offset of
-- the log of versions that is so.  A row with nothing but a partition says that its claim was refused.
--
-- Rules.  The statements of a volatile function see what others commit meanwhile, each anew.  Rows of
-- partitions are made in the order of partitions, and only before any is locked; then all are locked in that
-- order: two calls cannot wait for each other.  Under the locks an id is inserted if absent, so the lowest
-- offset wins whoever writes; what lies below "upto" does not change any more and needs no lock.
-- A plan made while the tables were empty would stay: so no sequential scans, and one look-up for each id.
CREATE FUNCTION headrace_look(
    asked_topic uuid, partitions integer[], afters bigint[], uptos bigint[],
    r_partitions integer[], r_events uuid[], r_seqs bigint[], r_contents bigint[], r_roots uuid[],
    r_depths integer[],
    c_handler text, c_subscriptions text[], c_partitions integer[], c_afters bigint[], c_uptos bigint[],
    c_owners text[]
) RETURNS TABLE (copy_partition integer, copy_seq bigint, first_seq bigint, first_content bigint)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    known integer;
    covered boolean;
    added bigint := 0;
    gap record;
BEGIN
    -- What a crash of the server takes of this is made again from the log: nobody waits for the disk.
    PERFORM set_config('synchronous_commit', 'off', true);

    SELECT count(*), coalesce(bool_and(place.upto >= asked.upto), true) INTO known, covered
    FROM unnest(partitions, uptos) AS asked (partition, upto)
    JOIN headrace_place AS place ON place.topic = asked_topic AND place.partition = asked.partition;

    IF known < cardinality(partitions) OR NOT covered THEN
        IF known < cardinality(partitions) THEN
            INSERT INTO headrace_place (topic, partition, upto)
            SELECT asked_topic, asked.partition, 0 FROM unnest(partitions) AS asked (partition)
            ORDER BY asked.partition ON CONFLICT DO NOTHING;
        END IF;

        PERFORM FROM headrace_place
        WHERE topic = asked_topic AND partition = ANY (partitions) ORDER BY partition FOR NO KEY UPDATE;

        SELECT asked.partition, place.upto INTO gap
        FROM unnest(partitions, afters) AS asked (partition, after)
        JOIN headrace_place AS place ON place.topic = asked_topic AND place.partition = asked.partition
        WHERE asked.after > place.upto ORDER BY asked.partition LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION '% %', gap.partition, gap.upto USING ERRCODE = 'HR001';
        END IF;

        INSERT INTO headrace_first (event, place, seq, content, root, depth)
        SELECT found.event, place.id, found.seq, found.content, found.root, found.depth
        FROM unnest(r_partitions, r_events, r_seqs, r_contents, r_roots, r_depths)
            AS found (partition, event, seq, content, root, depth)
        JOIN headrace_place AS place ON place.topic = asked_topic AND place.partition = found.partition
        WHERE found.seq >= place.upto
        ORDER BY found.event, found.seq ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS added = ROW_COUNT;

        IF added < cardinality(r_events) THEN
            INSERT INTO headrace_conflict (place, seq) SELECT place.id, found.seq
            FROM unnest(r_partitions, r_events, r_seqs, r_contents) AS found (partition, event, seq, content)
            JOIN headrace_place AS place ON place.topic = asked_topic AND place.partition = found.partition
            JOIN headrace_first AS first ON first.event = found.event AND first.place = place.id
            WHERE found.seq >= place.upto AND first.seq <> found.seq AND first.content <> found.content
            ON CONFLICT DO NOTHING;
        END IF;

        UPDATE headrace_place AS place SET upto = asked.upto
        FROM unnest(partitions, uptos) AS asked (partition, upto)
        WHERE place.topic = asked_topic AND place.partition = asked.partition AND place.upto < asked.upto;
    END IF;

    IF added < cardinality(r_events) THEN
        RETURN QUERY SELECT found.partition, found.seq, first.seq, first.content
        FROM unnest(r_partitions, r_events, r_seqs) AS found (partition, event, seq)
        JOIN headrace_place AS place ON place.topic = asked_topic AND place.partition = found.partition
        CROSS JOIN LATERAL (
            SELECT seq, content FROM headrace_first WHERE event = found.event AND place = place.id LIMIT 1
        ) AS first
        WHERE first.seq <> found.seq;
    END IF;

    IF cardinality(c_subscriptions) > 0 THEN
        RETURN QUERY WITH noted AS (
            INSERT INTO headrace_claim AS claim (subscription, partition, after, upto, owner)
            SELECT * FROM unnest(c_subscriptions, c_partitions, c_afters, c_uptos, c_owners)
                AS made (subscription, partition, after, upto, owner)
            ORDER BY made.subscription, made.partition
            ON CONFLICT (subscription, partition)
            DO UPDATE SET after = excluded.after, upto = excluded.upto WHERE claim.owner = excluded.owner
            RETURNING subscription, partition
        )
        SELECT made.partition, NULL::bigint, NULL::bigint, NULL::bigint
        FROM unnest(c_subscriptions, c_partitions) AS made (subscription, partition)
        WHERE (made.subscription, made.partition) NOT IN (SELECT subscription, partition FROM noted);
        RETURN QUERY SELECT NULL::integer, (SELECT active::bigint FROM headrace_handler WHERE name = c_handler),
            coalesce((SELECT upto FROM headrace_applied), 0), NULL::bigint;
    END IF;
END $$;

-- Makes a worker the one whose claims count, and answers what another has in hand who did not hand over.
CREATE FUNCTION headrace_take_over(asked_subscription text, asked_partition integer, new_owner text)
RETURNS TABLE (subscription text, partition integer, after bigint, upto bigint, owner text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO headrace_claim (subscription, partition, after, upto, owner)
    VALUES (asked_subscription, asked_partition, 0, 0, '') ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT subscription, partition, after, upto, owner FROM headrace_claim
    WHERE subscription = asked_subscription AND partition = asked_partition FOR UPDATE;
    UPDATE headrace_claim SET owner = new_owner
    WHERE subscription = asked_subscription AND partition = asked_partition;
END $$;

-- Forgets claims and attempts below an offset.  If a crash of the server takes that back, it is only repeated.
CREATE FUNCTION headrace_finished(asked_subscription text, asked_partition integer, low bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE headrace_claim SET after = low, upto = greatest(upto, low)
    WHERE subscription = asked_subscription AND partition = asked_partition AND after < low;
    DELETE FROM headrace_tried
    WHERE subscription = asked_subscription AND partition = asked_partition AND seq < low;
END $$;
