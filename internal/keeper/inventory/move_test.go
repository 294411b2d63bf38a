package inventory

import (
	"testing"
)

// A claim for a move holds where the move enters and nowhere else, also if a directory of it is moved or removed
// meanwhile, and leaves nothing behind.
func TestClaimMove(t *testing.T) {
	const kib = 1 << 10
	v, err := New(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	dev, root := v.key.Dev, v.key
	key := func(ino uint64) Key { return Key{dev, 1<<40 + ino} }
	a, b, sub, file, other := key(1), key(2), key(3), key(4), key(5)
	v.Created(a, root, "a", true)
	v.Created(b, root, "b", true)
	v.Created(sub, b, "sub", true)
	v.Created(file, a, "file", false)
	v.Settle(file, 0, 1000*kib/blockBytes)
	v.Created(other, sub, "other", false)
	v.Settle(other, 0, 400*kib/blockBytes)
	in, _ := v.Directory(b)
	below, _ := v.Directory(sub)
	from, _ := v.Directory(a)
	in.SetLimit(1500 * kib)
	before := v.Root().Claimed()
	claim, refused := v.ClaimMove(file, sub, Key{}, false)
	if refused != nil || claim.Bytes != 1000*kib || in.Claimed() != 1400*kib || in.Bytes() != 400*kib || v.Root().Claimed() != before || below.Claimed() != 400*kib {
		t.Fatalf("%+v, refused by %v: %d claimed below the limit, %d in all", claim, refused, in.Claimed(), v.Root().Claimed())
	}
	if _, refused := v.ClaimMove(file, sub, Key{}, false); refused != in || in.Claimed() != 1400*kib {
		t.Errorf("twice: refused by %v, %d claimed", refused, in.Claimed())
	}
	if second, refused := v.ClaimMove(a, sub, other, false); refused != in || second.Bytes != 600*kib {
		t.Errorf("a directory in place of a file: %+v, refused by %v", second, refused)
	}
	if within, refused := v.ClaimMove(other, b, Key{}, false); refused != nil || in.Claimed() != 1400*kib {
		t.Errorf("within the limit: %+v, refused by %v", within, refused)
	}
	v.Renamed(b, root, "b", a, "b") // with its claim
	if from.Claimed() != 1400*kib || v.Root().Claimed() != before {
		t.Errorf("%d claimed where the directory went, %d in all; want %d", from.Claimed(), v.Root().Claimed(), before)
	}
	v.Renamed(file, a, "file", sub, "file")
	claim.Release()
	if in.Claimed() != 1400*kib || from.Claimed() != 1400*kib || v.Root().Claimed() != before || in.Bytes() != 1400*kib {
		t.Errorf("%d claimed after the move, %d above, %d in all", in.Claimed(), from.Claimed(), v.Root().Claimed())
	}
	if claim, refused := v.ClaimMove(a, sub, Key{}, false); refused != nil || claim.Bytes != 0 && len(claim.dirs) > 0 {
		t.Errorf("below itself: %+v, refused by %v", claim, refused)
	}
	unknown, refused := v.ClaimMove(key(9), sub, Key{}, false)
	if refused != nil || unknown.Bytes != 0 {
		t.Errorf("of nothing known: %+v, refused by %v", unknown, refused)
	}
	unknown.Release()
}
