package rtpllm

import (
	"path"
	"strconv"
	"testing"
)

func TestPath(t *testing.T) {
	d := Dir{Biz: "chat", Checkpoint: Hash("/models/Qwen/QwQ-32B"), LoRA: NoLoRA, BlockTokens: 64, DType: 14, TPSize: 8, TPRank: 3}
	const want = "chat/v2/3698816947109647175/no_lora/64/14/0/8/3"
	if got := d.Path(); got != want {
		t.Errorf("path is %s, want %s", got, want)
	}
	if !d.Check() {
		t.Error("such a directory cannot be")
	}
	got, ok := Parse(want + "/-5_9223372036854775807")
	if want := (File{Dir: d, Item: Item{-5, 9223372036854775807}}); !ok || got != want {
		t.Errorf("parsed %+v, %v, want %+v", got, ok, want)
	}
}

func TestForeignPaths(t *testing.T) {
	const dir = "chat/v2/3698816947109647175/no_lora/64/14/0/8/3/"
	for _, p := range []string{
		"", "/", "1_2", "v2/1/no_lora/64/14/0/8/3/1_2",
		dir, dir + "1", dir + "1_", dir + "_1", dir + "1_2_3", dir + "+1_2", dir + "01_2", dir + "-0_2", dir + "1_9223372036854775808",
		dir + "1_2.tmp", dir + ".kv3fs-sums/1_2",
		"chat/v2/-1/no_lora/64/14/0/8/3/1_2", "chat/v2/1/lora/64/14/0/8/3/1_2", "chat/v2/1/no_lora/0/14/0/8/3/1_2",
		"chat/v2/1/no_lora/64/14/2/8/3/1_2", "chat/v2/1/no_lora/64/14/0/8/8/1_2", "chat/v2/1/no_lora/64/14/0/8/-1/1_2",
		"chat/v2/01/no_lora/64/14/0/8/3/1_2", "chat/v3/1/no_lora/64/14/0/8/3/1_2", "chat/../v2/1/no_lora/64/14/0/8/3/1_2",
		"/v2/1/no_lora/64/14/0/8/3/1_2", "0000000000000000/9ae3.data",
	} {
		if f, ok := Parse(p); ok {
			t.Errorf("%q is %+v", p, f)
		}
	}
}

func TestOldLayout(t *testing.T) {
	got, ok := Parse("chat/1/no_lora/64/14/1/8/3/-77")
	want := File{Dir: Dir{Biz: "chat", Checkpoint: 1, LoRA: NoLoRA, BlockTokens: 64, DType: 14, MLA: true, TPSize: 8, TPRank: 3}, Item: Item{Last: -77}, Old: true}
	if !ok || got != want {
		t.Errorf("parsed %+v, %v, want %+v", got, ok, want)
	}
}

// The name of the directory that has the blocks is never the root's own.
func TestPathsOfNobody(t *testing.T) {
	for _, p := range []string{"./v2/0/no_lora/1/0/0/7/0/0_0", "./0/no_lora/1/0/0/7/0/0", "../v2/0/no_lora/1/0/0/7/0/0_0", "/v2/0/no_lora/1/0/0/7/0/0_0"} {
		if file, ok := Parse(p); ok {
			t.Errorf("%s is read as %+v", p, file)
		}
	}
}

func TestDirsThatCannotBe(t *testing.T) {
	good := Dir{Biz: "chat", LoRA: NoLoRA, BlockTokens: 64, TPSize: 1}
	if !good.Check() {
		t.Fatal("a good one cannot be")
	}
	for what, change := range map[string]func(*Dir){
		"no name":            func(d *Dir) { d.Biz = "" },
		"an absolute name":   func(d *Dir) { d.Biz = "/chat" },
		"a name that climbs": func(d *Dir) { d.Biz = "../chat" },
		"no adapter":         func(d *Dir) { d.LoRA = "" },
		"an adapter's path":  func(d *Dir) { d.LoRA = "a/b" },
		"no tokens":          func(d *Dir) { d.BlockTokens = 0 },
		"no ranks":           func(d *Dir) { d.TPSize = 0 },
		"a rank too high":    func(d *Dir) { d.TPRank = 1 },
	} {
		d := good
		if change(&d); d.Check() {
			t.Errorf("%s: %s passes", what, d.Path())
		}
	}
}

func TestBlocks(t *testing.T) {
	for _, c := range []struct {
		size  int64
		n     int
		whole bool
	}{{0, 0, false}, {-1, 0, false}, {99, 0, false}, {100, 1, true}, {101, 1, false}, {1600, 16, true}, {1601, 16, false}, {1700, 0, false}} {
		if n, whole := Blocks(c.size, 100, 16); n != c.n || whole != c.whole {
			t.Errorf("%d bytes have %d blocks, %v; want %d, %v", c.size, n, whole, c.n, c.whole)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("chat/v2/3698816947109647175/no_lora/64/14/0/8/3/1_-2")
	f.Add("a/b/v2/1/18446744073709551615/1/0/1/1/0/-9223372036854775808_0")
	f.Add("chat/1/no_lora/64/14/1/8/3/-77")
	f.Fuzz(func(t *testing.T, p string) {
		file, ok := Parse(p)
		if !ok {
			return
		}
		back := path.Join(file.Path(), file.Name())
		if file.Old {
			back = path.Join(file.Biz, file.below(), strconv.FormatInt(file.Last, 10))
		}
		if back != p {
			t.Errorf("%q is read as %+v, whose path is %q", p, file, back)
		}
	})
}
