"""Errors 1xx: events and payloads."""

from __future__ import annotations

from headrace.errors.tree import Fault, HeadraceError


class EventError(HeadraceError):
    """An event or its class is not right."""


class ContractInvalid(EventError):
    """Event class {type} cannot be used as declared.

    Nothing was registered or published.

    Hint: declare it as ``class Name(Event, topic="...", key="field")``.
    """

    code = "HR-E101"
    fault = Fault.YOURS


class NotAnEvent(ContractInvalid):
    """{place} cannot be published: it is {found}.

    What is published is an event, or a list of events and of pairs of an event and its `Options`. Nothing was
    written.

    Hint: make an instance, ``await app.publish(Ticket(customer="ada"))``.
    """

    code = "HR-E118"
    fault = Fault.YOURS


class TypeTwice(EventError):
    """Two event classes are both named {type}: {first} and {second}.

    A type name says how stored bytes are read, so it may have one meaning only. The second class was
    refused.

    Hint: rename one, or give it ``type="other.name"``.
    """

    code = "HR-E102"
    fault = Fault.YOURS


class PayloadInvalid(EventError):
    """Payload of {type} is not valid.

    Every fault of the payload is listed with its path. A publish was refused and nothing written; a
    stored event goes to the dead letters with its original bytes.

    Hint: compare the payload with the fields of the event class. A dead letter: after a change of the class
    ``headrace dlq redrive`` tries it again.
    """

    code = "HR-E103"
    fault = Fault.YOURS


class PayloadUndecodable(EventError):
    """Payload of {type} is not JSON that Headrace accepts.

    Accepted is RFC 8259 JSON in UTF-8, at most 64 levels deep, without duplicate keys, NaN, Infinity or
    lone surrogates. The bytes are kept as they are.

    Hint: mend the producer; the position of the fault stands in the message.
    """

    code = "HR-E104"
    fault = Fault.THEIRS


class PayloadTooLarge(EventError):
    """Payload of {type} has {size_bytes} bytes, the limit is {limit_bytes}.

    Nothing was written and the attempt is not repeated: the same payload would be refused again.

    Hint: raise ``payload_bytes_max`` (setting, ``HEADRACE_PAYLOAD_BYTES_MAX``), or store the large part
    elsewhere and publish its address.
    """

    code = "HR-E105"
    fault = Fault.YOURS


class HeadersTooLarge(EventError):
    """Headers of {type} have {size_bytes} bytes, the limit is {limit_bytes}.

    Nothing was written.

    Hint: headers are for routing and tracing; put data into the payload.
    """

    code = "HR-E106"
    fault = Fault.YOURS


class ContentTypeRefused(EventError):
    """Content type {content_type!r} of event {event_id} is not accepted.

    Only ``application/json`` is read; no setting turns on a format that can run code. The event went to
    the dead letters with its original bytes.

    Hint: publish it again as JSON.
    """

    code = "HR-E107"
    fault = Fault.THEIRS


class TypeUnknown(EventError):
    """No event class of this app is named {type} (topic {topic}).

    The event went to the dead letters with its original bytes; other events go on.

    Hint: import the class in the app (or list it in ``App(events=[...])``) and redrive.
    """

    code = "HR-E108"
    fault = Fault.YOURS


class HeadCorrupt(EventError):
    """The envelope of the event at {where} cannot be read.

    The event went to the dead letters with its original bytes.

    Hint: run ``headrace status --verify``; a tool other than Headrace may have written to the journal.
    """

    code = "HR-E109"
    fault = Fault.THEIRS


class EventExpired(EventError):
    """The event at {where} was deleted by topic {topic} before it was handled.

    It waited for a retry, or for a worker, for longer than the topic keeps events. It counts as expired.

    Hint: raise ``retention.ms`` of the topic above the longest wait and the longest outage of workers.
    """

    code = "HR-E117"
    fault = Fault.YOURS


class EventConflict(EventError):
    """Event {event_id} is already in topic {topic} with other content.

    Same id and same type, key and payload bytes would be a success without effect. Nothing was written.

    Hint: use a new id for new content.
    """

    code = "HR-E110"
    fault = Fault.YOURS


class ParentMissing(EventError):
    """Event {event_id} names parent {parent_id}, which is not in the journal.

    No handler may see an event before its causes. Nothing was written.

    Hint: publish the parent first, or both in one ``publish([...])``.
    """

    code = "HR-E111"
    fault = Fault.YOURS


class ParentCycle(EventError):
    """Events of one publish are each other's parents: {cycle}.

    Nothing was written.

    Hint: an event cannot cause itself; check the ``parents`` of the events named.
    """

    code = "HR-E112"
    fault = Fault.YOURS


class KeyInvalid(EventError):
    """Key of {type} is not usable: {problem}.

    A key is text of 1 to 1,024 bytes in UTF-8. Nothing was written.

    Hint: give the key field a value, or make it ``None`` for an event without order.
    """

    code = "HR-E113"
    fault = Fault.YOURS


class TopicInvalid(EventError):
    """Topic name {topic!r} is not usable.

    Letters, digits, ``.``, ``_`` and ``-``, at most 200 (249 is Kafka's bound, and suffixes follow).

    Hint: choose a plain name, such as ``support.tickets``.
    """

    code = "HR-E114"
    fault = Fault.YOURS


class EnvelopeInvalid(EventError):
    """Envelope attribute {attribute} is not usable: {problem}.

    Nothing was written.

    Hint: see ``help(headrace.Envelope)`` for the form of each attribute.
    """

    code = "HR-E115"
    fault = Fault.YOURS


class UnitTooLarge(EventError):
    """One publish into {path} holds {size}, the limit is {limit}.

    A unit is one transaction, and everybody else who writes waits for it. Nothing was written.

    Hint: publish in several calls; only what must be there together or not at all belongs in one.
    """

    code = "HR-E116"
    fault = Fault.YOURS
