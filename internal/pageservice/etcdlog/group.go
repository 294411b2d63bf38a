package etcdlog

import (
	"encoding/binary"
	"fmt"
)

// A group is the records of writes that become durable together, framed one after the other.
// It is cut into the bodies of as many batches as it needs, mostly one. It counts once its last batch is
// there: a leader that dies or fails before that leaves a beginning, which readers drop.

// groupBytes bounds a group, so that readers have bounded memory.
const groupBytes = 64 << 20

// appendFrame appends a record to a group, or to a snapshot.
func appendFrame(b, rec []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(rec))), rec...)
}

// frames passes the records of a group on.
func frames(group []byte, each func(rec []byte) error) error {
	for len(group) > 0 {
		n, size := binary.Uvarint(group)
		if size <= 0 || n > uint64(len(group)-size) {
			return errMalformed
		}
		if err := each(group[size : size+int(n)]); err != nil {
			return err
		}
		group = group[size+int(n):]
	}
	return nil
}

// cut cuts a group into bodies of batches: one at least.
func cut(group []byte) (bodies [][]byte) {
	for len(group) > batchBytes {
		bodies = append(bodies, group[:batchBytes])
		group = group[batchBytes:]
	}
	return append(bodies, group)
}

// joiner joins the parts of groups.
type joiner struct {
	term int64
	next uint32 // part that must come; 0: none is missing
	body []byte
}

// add adds a batch, and returns the group that it completes, if it does. A part 0 or a batch of another kind ends
// a group that was not completed.
func (j *joiner) add(b *batch) (group []byte, whole bool, err error) {
	switch {
	case b.kind != records:
		*j = joiner{}
		return nil, false, nil
	case b.part == 0 && b.last:
		*j = joiner{}
		return b.body, true, nil
	case b.part == 0:
		*j = joiner{term: b.term, next: 1, body: append([]byte(nil), b.body...)}
		return nil, false, nil
	case j.next == 0 || b.part != j.next || b.term != j.term:
		return nil, false, fmt.Errorf("part %d of a group of records comes after part %d", b.part, int64(j.next)-1)
	case len(j.body)+len(b.body) > groupBytes:
		return nil, false, fmt.Errorf("a group of more than %d bytes", groupBytes)
	}
	j.next++
	j.body = append(j.body, b.body...)
	if !b.last {
		return nil, false, nil
	}
	group = j.body
	*j = joiner{}
	return group, true, nil
}
