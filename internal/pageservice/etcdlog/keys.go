package etcdlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// What lies in etcd, below the prefix of the cluster:
//
//	log/INDEX   a batch; 20 digits, so that their order is the log's
//	head        which batch is the newest
//	gate        what an append compares, too, so that one that was sent can be kept from succeeding
//	snapshots   the newest snapshots that were verified
//	promises    what clients that were told something may rely on, and how many ranks keys need
//	proposed/HOST  a snapshot that a follower has taken, until the leader has looked at it
type keys struct{ prefix string }

func (k keys) head() string                { return k.prefix + "/head" }
func (k keys) gate() string                { return k.prefix + "/gate" }
func (k keys) log() string                 { return k.prefix + "/log/" }
func (k keys) batch(index uint64) string   { return fmt.Sprintf("%s%020d", k.log(), index) }
func (k keys) snapshots() string           { return k.prefix + "/snapshots" }
func (k keys) promises() string            { return k.prefix + "/promises" }
func (k keys) proposed() string            { return k.prefix + "/proposed/" }
func (k keys) proposal(host string) string { return k.proposed() + host }

// index returns the index that a key of a batch names.
func (k keys) index(key string) (uint64, error) {
	digits, ok := strings.CutPrefix(key, k.log())
	index, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || len(digits) != 20 {
		return 0, fmt.Errorf("%s is no key of the page log", key)
	}
	return index, nil
}

// jsonFormat is the format of head and snapshots.
const jsonFormat = 1

// stamp begins every JSON value, in all formats.
type stamp struct {
	Format uint64 `json:"format"`
	writer
}

// head describes the newest batch.
type head struct {
	stamp

	// Cluster is the ID of the cluster. After a start over it is another one than the cluster's, until the owner
	// has written down that it forgot everything.
	Cluster string `json:"cluster"`

	Index uint64 `json:"index"`
	Chain chain  `json:"chain"`
	Term  int64  `json:"term"`

	// Whole is from which index on the records give the whole state, without a snapshot: no one needs
	// what is below.
	Whole uint64 `json:"whole"`
}

// reference names a snapshot, and what must be in it.
type reference struct {
	writer
	Index uint64 `json:"index"` // of the last batch that it contains
	Chain chain  `json:"chain"` // of that batch
	State uint64 `json:"state,string"`
	Epoch uint64 `json:"epoch,omitempty"` // see position
	File  string `json:"file"`            // its name in the directory of snapshots
	Bytes int64  `json:"bytes"`
	Sum   chain  `json:"sha256"`
}

// snapshots is the value of that key: at most two, newest first.
type snapshots struct {
	stamp
	Newest []reference `json:"newest"`
}

// promises is the value of that key. Only who leads changes it.
type promises struct {
	stamp
	pageservice.Promises     // the most that any host that has led has made
	World                int `json:"world,omitempty"` // of the host that led last; 0: all ranks that are known
}

// keptSnapshots is how many snapshots are kept. The log is kept after the oldest of them.
const keptSnapshots = 2

// proposal is a snapshot that waits to be verified.
type proposal struct {
	stamp
	Snapshot reference `json:"snapshot"`
}

func encodeJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // none of these types can fail
	}
	return string(b)
}

// decodeJSON reads a value of a known format.
func decodeJSON(key string, value []byte, v any) error {
	var s stamp
	err := json.Unmarshal(value, &s)
	switch {
	case err != nil:
	case s.Format > jsonFormat:
		return s.newer(key, s.Format, jsonFormat)
	case s.Format == 0:
		err = errors.New("it has no format")
	default:
		err = json.Unmarshal(value, v)
	}
	if err != nil {
		return damaged("%s: %v", key, err)
	}
	return nil
}

func decodeHead(key string, value []byte) (h head, err error) {
	if err = decodeJSON(key, value, &h); err == nil && (h.Index == 0 || h.Whole == 0 || h.Whole > h.Index+1) {
		err = damaged("%s: index %d, whole from %d on", key, h.Index, h.Whole)
	}
	return h, err
}

func decodeSnapshots(key string, value []byte) (s snapshots, err error) {
	if err = decodeJSON(key, value, &s); err != nil {
		return s, err
	}
	if len(s.Newest) > keptSnapshots {
		return s, damaged("%s: %d snapshots", key, len(s.Newest))
	}
	for _, r := range s.Newest {
		if err := r.check(); err != nil {
			return s, damaged("%s: %v", key, err)
		}
	}
	return s, nil
}

func decodeProposal(key string, value []byte) (p proposal, err error) {
	if err = decodeJSON(key, value, &p); err == nil {
		if err = p.Snapshot.check(); err != nil {
			err = damaged("%s: %v", key, err)
		}
	}
	return p, err
}

// check returns an error if r can name no snapshot. Other hosts wrote it.
func (r *reference) check() error {
	if r.File == "" || r.File == "." || r.File == ".." || strings.ContainsAny(r.File, "/\x00") || r.Index == 0 || r.Bytes <= 0 {
		return fmt.Errorf("a snapshot at %d in file %q of %d bytes", r.Index, r.File, r.Bytes)
	}
	return nil
}
