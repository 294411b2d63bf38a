package kvcm

import (
	"fmt"
	"testing"
)

func TestName(t *testing.T) {
	for _, c := range []struct {
		keys []int64
		want string
	}{
		{[]int64{0x1f2e3d4c5b6a7988}, "1f2e3d4c5b6a7988"},
		{[]int64{-1}, "ffffffffffffffff"},
		{[]int64{10}, "a"},
		{[]int64{10, -1}, "a_" + hex(hash64([]byte("i-1/tp0_F0/a|i-1/tp0_F0/ffffffffffffffff"), 42))},
	} {
		got := Name("i-1", "tp0_F0", c.keys...)
		if got != c.want {
			t.Errorf("%x are named %s, want %s", c.keys, got, c.want)
		}
		name, ok := ParseName(got)
		if !ok || name.First != c.keys[0] || name.Many != (len(c.keys) > 1) {
			t.Errorf("%s is read as %+v, %v", got, name, ok)
		}
	}
	if Name("i", "s", 1, 2) == Name("i", "s", 1, 3) || Name("i", "s", 1, 2) == Name("i", "t", 1, 2) || Name("i", "s", 1, 2) == Name("j", "s", 1, 2) {
		t.Error("other keys, specs or instances have the same name")
	}
}

func TestForeignNames(t *testing.T) {
	for _, p := range []string{
		"", "a", "i/s", "i/s/", "i/s/g", "i/s/A", "i/s/0a", "i/s/a_", "i/s/_a", "i/s/a_b_c", "i/s/10000000000000000",
		"i/s/-1", "i/s/a.tmp", "/s/a", "i//a", "../s/a", "i/../a", "i/s/t/a", "i/s/0x1",
	} {
		if f, ok := Parse(p); ok {
			t.Errorf("%q is %+v", p, f)
		}
	}
}

func TestURI(t *testing.T) {
	for s, want := range map[string]URI{
		"hf3fs://nas/3fs/kv_manager/i/s/a?blkid=3&size=4096": {"nas", "/3fs/kv_manager/i/s/a", 4096, true, 3},
		"hf3fs://nas/a?size=1":                               {"nas", "/a", 1, false, 0},
	} {
		got, ok := ParseURI(s)
		if !ok || got != want || got.String() != s {
			t.Errorf("%s is read as %+v, %v, and written as %s", s, got, ok, got)
		}
	}
	if u, ok := ParseURI("hf3fs://nas/a?size=8&blkid=2&crc=1&x"); !ok || u.Offset() != 16 {
		t.Errorf("in another order it is %+v, %v", u, ok)
	}
	for _, s := range []string{
		"", "hf3fs://", "hf3fs://nas", "hf3fs://nas/?size=1", "hf3fs://nas/a", "hf3fs://nas/a?size=0", "hf3fs://nas/a?size=-1",
		"hf3fs://nas/a?size=1&blkid=", "hf3fs://nas/a?size=1&blkid=x", "hf3fs://nas/a?size=1&blkid=9223372036854775808",
		"hf3fs://nas/a?size=4611686018427387904&blkid=2", "file://nas/a?size=1", "hf3fs:/nas/a?size=1", "3fs://nas/a?size=1", "hf3fs://nas/a?size=01",
	} {
		if u, ok := ParseURI(s); ok {
			t.Errorf("%q is %+v", s, u)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("i/tp0_F0/1f2e3d4c5b6a7988")
	f.Add("i/s/a_ffffffffffffffff")
	f.Fuzz(func(t *testing.T, p string) {
		file, ok := Parse(p)
		if !ok {
			return
		}
		back := fmt.Sprintf("%s/%s/%x", file.Instance, file.Spec, uint64(file.First))
		if file.Many {
			back += fmt.Sprintf("_%x", file.Hash)
		}
		if back != p {
			t.Errorf("%q is read as %+v", p, file)
		}
	})
}

func FuzzParseURI(f *testing.F) {
	f.Add("hf3fs://nas/3fs/kv_manager/i/s/a?blkid=3&size=4096")
	f.Add("hf3fs:///a?size=1")
	f.Fuzz(func(t *testing.T, s string) {
		u, ok := ParseURI(s)
		if !ok {
			return
		}
		if u.Offset() < 0 || u.Offset()+u.SizeBytes <= 0 {
			t.Errorf("%q begins at %d and has %d bytes", s, u.Offset(), u.SizeBytes)
		}
		if again, ok := ParseURI(u.String()); !ok || again != u {
			t.Errorf("%q is read as %+v, and that as %+v", s, u, again)
		}
	})
}
