package kv

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/device"
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
	memory := device.NewHost(device.HostOptions{}).Wrap(make([]byte, 8))
	at := func(offset int64) *device.Place {
		p := memory.At(offset)
		return &p
	}
	host := func(index, size int) Shard { return Shard{Key: Key{2}, Index: index, Buf: make([]byte, size)} }
	good, onDevice := host(1, 4), Shard{Key: Key{1}, Device: at(4)}
	for name, c := range map[string]struct {
		batch    []Shard
		shard    int
		takesAny bool // a store that takes memory of devices refuses it, too
	}{
		"no shards":       {nil, -1, true},
		"index":           {[]Shard{good, host(2, 4)}, 1, true},
		"minus index":     {[]Shard{host(-1, 4), good}, 0, true},
		"short buffer":    {[]Shard{good, good, host(0, 3)}, 2, true},
		"long buffer":     {[]Shard{host(0, 5)}, 0, true},
		"no memory":       {[]Shard{{}}, 0, true},
		"both":            {[]Shard{good, {Buf: make([]byte, 4), Device: at(0)}}, 1, true},
		"no buffer":       {[]Shard{{Device: &device.Place{}}}, 0, true},
		"beyond its end":  {[]Shard{onDevice, {Device: at(5)}}, 1, true},
		"before it":       {[]Shard{onDevice, {Device: at(-1)}}, 1, true},
		"far beyond":      {[]Shard{{Device: at(math.MaxInt64)}}, 0, true},
		"device's memory": {[]Shard{good, onDevice}, 1, false},
	} {
		var refused *BatchError
		if err := l.CheckShards(c.batch); !errors.As(err, &refused) || refused.Shard != c.shard && !c.takesAny {
			t.Errorf("%s: %v", name, err)
		}
		err := l.CheckAnyShards(c.batch)
		if c.takesAny && (!errors.As(err, &refused) || refused.Shard != c.shard) || !c.takesAny && err != nil {
			t.Errorf("%s: with devices: %v", name, err)
		}
	}
	if err := l.CheckShards([]Shard{good}); err != nil {
		t.Error(err)
	}
}

// Memory of a device is cut as the host's is.
func TestPlacesOfShards(t *testing.T) {
	l := Layout{BlockBytes: 12, ShardBytes: 4}
	mem := make([]byte, 100)
	for i := range mem {
		mem[i] = byte(i)
	}
	whole := device.NewHost(device.HostOptions{}).Wrap(mem)
	keys := []Key{{1}, {2}, {3}}
	starts := []int64{50, 10}
	var bufs [][]byte
	var places []device.Place
	for _, at := range starts {
		bufs, places = append(bufs, mem[at:at+12]), append(places, whole.At(at))
	}
	for name, c := range map[string]struct{ host, device []Shard }{
		"by block": {l.ByBlock(keys, bufs), ByBlockOn[Shard](l, keys, places)},
		"by layer": {l.ByLayer(keys, bufs), ByLayerOn[Shard](l, keys, places)},
	} {
		if len(c.device) != len(c.host) {
			t.Fatalf("%s: %d shards, on the host %d", name, len(c.device), len(c.host))
		}
		for i, want := range c.host {
			got := c.device[i]
			if got.Key != want.Key || got.Index != want.Index || got.Buf != nil {
				t.Errorf("%s: shard %d is %+v", name, i, got)
			}
			if want.Key == keys[2] {
				if got.Device.Buffer != nil {
					t.Errorf("%s: shard %d has a place that was not given", name, i)
				}
			} else if got.Device.Offset != int64(want.Buf[0]) {
				t.Errorf("%s: shard %d is at %d, want %d", name, i, got.Device.Offset, want.Buf[0])
			}
		}
	}
	if ByLayerOn[Shard](Layout{}, keys, places) != nil {
		t.Error("a layout that is wrong gives shards")
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

// Missing or short buffers make a batch that is refused. Nothing panics.
func TestOrdersOfBuffersThatDoNotFit(t *testing.T) {
	l := Layout{BlockBytes: 4, ShardBytes: 2}
	keys := []Key{{1}, {2}}
	for name, c := range map[string]struct {
		bufs  [][]byte
		block int // the refused shard by block
		layer int // the refused shard by layer
	}{
		"none":             {nil, 0, 0},
		"one missing":      {[][]byte{make([]byte, 4)}, 2, 1},
		"one nil":          {[][]byte{nil, make([]byte, 4)}, 0, 0},
		"short by a byte":  {[][]byte{make([]byte, 4), make([]byte, 3)}, 3, 3},
		"short by a shard": {[][]byte{make([]byte, 2), make([]byte, 4)}, 1, 2},
	} {
		for order, got := range map[string]struct {
			shards []Shard
			want   int
		}{"block": {l.ByBlock(keys, c.bufs), c.block}, "layer": {l.ByLayer(keys, c.bufs), c.layer}} {
			var refused *BatchError
			if err := l.CheckShards(got.shards); !errors.As(err, &refused) || refused.Shard != got.want || len(got.shards) != 4 {
				t.Errorf("%s, by %s: %d shards, %v; want shard %d refused", name, order, len(got.shards), err, got.want)
			}
		}
	}
	longer := [][]byte{make([]byte, 5), make([]byte, 9), make([]byte, 4)}
	if err := l.CheckShards(l.ByBlock(keys, longer)); err != nil {
		t.Errorf("buffers that are longer, and more of them: %v", err)
	}
	for _, bad := range []Layout{{}, {BlockBytes: 4}, {ShardBytes: 4}, {-1, 1}, {1 << 62, 1}, {5, 2}} {
		if n := len(bad.ByBlock(keys, longer)) + len(bad.ByLayer(keys, longer)); n != 0 {
			t.Errorf("%+v gives %d shards", bad, n)
		}
	}
}

func TestCheckFound(t *testing.T) {
	for _, c := range []struct{ keys, found int }{{0, 1}, {1, 0}, {3, 2}, {2, 3}} {
		var refused *BatchError
		if err := CheckFound(make([]Key, c.keys), make([]bool, c.found)); !errors.As(err, &refused) || refused.Shard != -1 {
			t.Errorf("%d places for %d keys: %v", c.found, c.keys, err)
		}
	}
	if err := errors.Join(CheckFound(nil, nil), CheckFound(make([]Key, 2), make([]bool, 2))); err != nil {
		t.Error(err)
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

func TestIsUnreadable(t *testing.T) {
	for _, err := range []error{syscall.EIO, syscall.EBADMSG, syscall.EUCLEAN, syscall.ENODATA, syscall.EILSEQ, syscall.EREMOTEIO} {
		if !IsUnreadable(&os.PathError{Op: "read", Path: "x", Err: err}) {
			t.Errorf("%v", err)
		}
	}
	for _, err := range []error{nil, syscall.ENOENT, syscall.EACCES, syscall.ENOTCONN, syscall.ENOSPC, ErrMiss, ErrTimeout} {
		if IsUnreadable(err) {
			t.Errorf("%v", err)
		}
	}
}

func TestIsAway(t *testing.T) {
	for _, err := range []error{syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.ESHUTDOWN, syscall.EHOSTDOWN, ErrTimeout, Abandoned("a disk")} {
		if !IsAway(fmt.Errorf("read x: %w", err)) {
			t.Errorf("%v", err)
		}
	}
	for _, err := range []error{nil, syscall.EIO, syscall.ENOENT, syscall.ENOSPC, syscall.ESTALE, ErrMiss, ErrFull, ErrClosed} {
		if IsAway(err) {
			t.Errorf("%v", err)
		}
	}
}
