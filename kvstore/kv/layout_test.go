package kv

import (
	"errors"
	"strings"
	"testing"
)

func TestLayoutCheck(t *testing.T) {
	for _, c := range []struct {
		block, shard int64
		want         string // in the error
	}{
		{4096, 4096, ""},
		{4096, 512, ""},
		{MaxShards * 2, 2, ""},
		{0, 1, "block_size"},
		{-1, 1, "block_size"},
		{1, 0, "shard_size"},
		{4096, 4095, "multiple"},
		{(MaxShards + 1) * 2, 2, "at most 488"},
	} {
		err := Layout{c.block, c.shard}.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d in %d: %v; want %q", c.block, c.shard, err, c.want)
		}
	}
}

func TestCheckShardsNamesTheFirstThatIsWrong(t *testing.T) {
	l := Layout{BlockBytes: 8, ShardBytes: 4}
	good := Shard{Key{1}, 1, make([]byte, 4)}
	for name, c := range map[string]struct {
		batch []Shard
		shard int
	}{
		"no shards":    {nil, -1},
		"index":        {[]Shard{good, {Key{2}, 2, make([]byte, 4)}}, 1},
		"minus index":  {[]Shard{{Key{2}, -1, make([]byte, 4)}, good}, 0},
		"short buffer": {[]Shard{good, good, {Key{2}, 0, make([]byte, 3)}}, 2},
		"long buffer":  {[]Shard{{Key{2}, 0, make([]byte, 5)}}, 0},
	} {
		var refused *BatchError
		if err := l.CheckShards(c.batch); !errors.As(err, &refused) || refused.Shard != c.shard {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.CheckShards([]Shard{good}); err != nil {
		t.Error(err)
	}
}

func TestOrders(t *testing.T) {
	l := Layout{BlockBytes: 4, ShardBytes: 2}
	keys, bufs := []Key{{1}, {2}}, [][]byte{[]byte("abcd"), []byte("efgh")}
	text := func(shards []Shard) (s string) {
		for _, shard := range shards {
			s += string(rune('0'+shard.Key[0])) + string(rune('0'+shard.Index)) + string(shard.Buf) + " "
		}
		return s
	}
	if got := text(l.ByBlock(keys, bufs)); got != "10ab 11cd 20ef 21gh " {
		t.Error(got)
	}
	if got := text(l.ByLayer(keys, bufs)); got != "10ab 20ef 11cd 21gh " {
		t.Error(got)
	}
}

func TestKeys(t *testing.T) {
	k := Key{0: 0xab, 15: 1}
	again, err := ParseKey(k.String())
	if err != nil || again != k {
		t.Errorf("%v, %v", again, err)
	}
	for _, bad := range []string{"", "ab", k.String() + "0", strings.Repeat("x", 32)} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("%q is a key", bad)
		}
	}
}

func TestErrorsAreWhatTheySay(t *testing.T) {
	damage := error(&CorruptError{Key{1}, "some file", "it is cut short"})
	if !errors.Is(damage, ErrMiss) || !errors.Is(damage, ErrCorrupt) || errors.Is(damage, ErrFull) {
		t.Error("damage is a miss and ErrCorrupt, and nothing else")
	}
	left := Abandoned("a disk")
	if !errors.Is(left, ErrAbandoned) || !errors.Is(left, ErrTimeout) || errors.Is(left, ErrMiss) {
		t.Error("ErrAbandoned is an ErrTimeout, and not a miss")
	}
}
