package etcdlog

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

var sample = batch{
	by: writer{"host-1", "1.2.3"}, kind: records, term: 77, index: 12, prev: chain{1, 2, 3}, part: 3, last: true, body: []byte("body"),
}

func TestBatchesComeBack(t *testing.T) {
	for _, b := range []batch{
		sample,
		{by: writer{"h", ""}, kind: records, index: 1, body: []byte{}},
		{by: writer{"h", "v"}, kind: leads, term: -1, index: 1<<64 - 1, last: true, body: []byte{}},
		{by: writer{"h", "v"}, kind: checkpoint, index: 5, last: true, body: []byte("host-2")},
		{by: writer{"h", "v"}, kind: records, index: 5, body: bytes.Repeat([]byte{7}, batchBytes)},
	} {
		value, sum := b.encode()
		got, gotSum, err := decodeBatch(value)
		if err != nil || gotSum != sum || !reflect.DeepEqual(got, b) {
			t.Errorf("%+v came back as %+v, %v", b, got, err)
		}
	}
}

// A bit that is not what it was is noticed, wherever it is.
func TestDamagedBatchesAreRefused(t *testing.T) {
	value, _ := sample.encode()
	for i := range value {
		bad := bytes.Clone(value)
		bad[i] ^= 1
		if _, _, err := decodeBatch(bad); err == nil {
			t.Errorf("byte %d", i)
		}
		if _, _, err := decodeBatch(value[:i]); err == nil {
			t.Errorf("%d bytes", i)
		}
	}
	if _, _, err := decodeBatch(append(bytes.Clone(value), 0)); err == nil {
		t.Error("one byte more")
	}
}

// A chain is over everything before: equal batches after different ones have different chains.
func TestChainsTellHistoriesApart(t *testing.T) {
	other := sample
	other.prev[0]++
	_, a := sample.encode()
	_, b := other.encode()
	if a == b {
		t.Error("equal")
	}
}

// asNewer makes a value one of a format that does not exist yet.
func asNewer(value []byte) []byte {
	newer := bytes.Clone(value)
	newer[4]++
	return newer
}

func TestNewerFormatsAreRefusedByName(t *testing.T) {
	value, _ := sample.encode()
	_, _, batchErr := decodeBatch(asNewer(value))
	_, headErr := decodeHead("/head", []byte(`{"format": 2, "host": "host-1", "version": "1.2.3", "index": {"of": "another type"}}`))
	_, refsErr := decodeSnapshots("/snapshots", []byte(`{"format": 2, "host": "host-1", "version": "1.2.3"}`))
	var snapshot bytes.Buffer
	writeSample(t, &snapshot)
	_, _, snapshotErr := decodeSnapshot(bytes.NewReader(asNewer(snapshot.Bytes())), func([]byte) error { return nil })
	for what, err := range map[string]error{"batch": batchErr, "head": headErr, "pointer": refsErr, "snapshot": snapshotErr} {
		if !errors.Is(err, ErrNewer) || !errors.Is(err, pageservice.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for _, want := range []string{"host-1", "1.2.3", "format 2"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %q", what, err, want)
			}
		}
	}
}

func TestGroupsAreCutAndJoined(t *testing.T) {
	var group []byte
	var want [][]byte
	for i := range 3000 {
		rec := bytes.Repeat([]byte{byte(i)}, i%700)
		want = append(want, rec)
		group = appendFrame(group, rec)
	}
	bodies := cut(group)
	if len(bodies) < 3 {
		t.Fatalf("%d bodies", len(bodies))
	}
	var j joiner
	for i, body := range bodies {
		joined, whole, err := j.add(&batch{kind: records, part: uint32(i), last: i == len(bodies)-1, body: body})
		if err != nil || whole != (i == len(bodies)-1) {
			t.Fatal(i, whole, err)
		}
		if !whole {
			continue
		}
		var got [][]byte
		if err := frames(joined, func(rec []byte) error { got = append(got, rec); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("%d records", len(got))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatal(i)
			}
		}
	}
}

// The beginning of a group whose leader died or failed counts for nothing; its end alone is damage.
func TestBrokenGroups(t *testing.T) {
	part := func(term int64, n uint32, last bool) *batch {
		return &batch{kind: records, term: term, part: n, last: last, body: []byte{1, byte('a' + n)}}
	}
	for name, c := range map[string]struct {
		batches []*batch
		groups  int
		damaged bool
	}{
		"the leader fails and goes on":           {[]*batch{part(1, 0, false), part(1, 0, true)}, 1, false},
		"the leader dies":                        {[]*batch{part(1, 0, false), {kind: leads, last: true}, part(2, 0, true)}, 1, false},
		"a part is missing":                      {[]*batch{part(1, 0, false), part(1, 2, true)}, 0, true},
		"an end without a beginning":             {[]*batch{part(1, 1, true)}, 0, true},
		"an end after another kind":              {[]*batch{part(1, 0, false), {kind: checkpoint, last: true}, part(1, 1, true)}, 0, true},
		"another term goes on":                   {[]*batch{part(1, 0, false), part(2, 1, true)}, 0, true},
		"two groups, the second of several ones": {[]*batch{part(1, 0, true), part(1, 0, false), part(1, 1, false), part(1, 2, true)}, 2, false},
	} {
		var j joiner
		groups, damaged := 0, false
		for _, b := range c.batches {
			_, whole, err := j.add(b)
			if whole {
				groups++
			}
			damaged = damaged || err != nil
		}
		if groups != c.groups || damaged != c.damaged {
			t.Errorf("%s: %d groups, damaged %t", name, groups, damaged)
		}
	}
}

func FuzzBatch(f *testing.F) {
	value, _ := sample.encode()
	f.Add(value)
	f.Fuzz(func(t *testing.T, value []byte) {
		b, sum, err := decodeBatch(value)
		if err != nil {
			return
		}
		again, sumAgain := b.encode()
		if !bytes.Equal(again, value) || sum != sumAgain {
			t.Errorf("%x is read as %+v, which is written as %x", value, b, again)
		}
		var j joiner
		b.part = 0
		if group, whole, err := j.add(&b); err == nil && whole {
			_ = frames(group, func([]byte) error { return nil })
		}
	})
}

// Hosts that write into etcd may be of any version, and people may, too.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(encodeJSON(head{stamp: stamp{1, writer{"h", "v"}}, Index: 3, Whole: 1})))
	f.Add([]byte(encodeJSON(snapshots{stamp{1, writer{"h", "v"}}, []reference{{Index: 3, File: "f", Bytes: 7}}})))
	f.Add([]byte(encodeJSON(proposal{stamp{1, writer{"h", "v"}}, reference{Index: 3, File: "../f", Bytes: 7}})))
	f.Fuzz(func(t *testing.T, value []byte) {
		if h, err := decodeHead("/head", value); err == nil && (h.Index == 0 || h.Whole == 0) {
			t.Errorf("%+v", h)
		}
		refs, err := decodeSnapshots("/snapshots", value)
		for _, r := range refs.Newest {
			if err == nil && strings.Contains(r.File, "/") {
				t.Errorf("%+v", r)
			}
		}
		if p, err := decodeProposal("/proposed/h", value); err == nil && strings.Contains(p.Snapshot.File, "/") {
			t.Errorf("%+v", p)
		}
	})
}
