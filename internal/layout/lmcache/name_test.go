package lmcache

import (
	"reflect"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	plain := Name{Model: "meta-llama/Llama-3-8B", WorldSize: 2, WorkerID: 1, Hash: "1f3a", DType: "half", Layer: NoLayer}
	with := func(change func(*Name)) Name {
		n := plain
		change(&n)
		return n
	}
	for file, want := range map[string]Name{
		"meta-llama-SEP-Llama-3-8B@2@1@1f3a@half.data":     plain,
		"meta-llama-SEP-Llama-3-8B@2@1@-1f3a@half.data":    with(func(n *Name) { n.Hash = "-1f3a" }),
		"meta-llama-SEP-Llama-3-8B@2@1@0@half.data":        with(func(n *Name) { n.Hash = "0" }),
		"meta-llama-SEP-Llama-3-8B@2@1@1f3a@half@0.data":   with(func(n *Name) { n.Layer = 0 }),
		"meta-llama-SEP-Llama-3-8B@2@1@1f3a@half@31.data":  with(func(n *Name) { n.Layer = 31 }),
		"meta-llama-SEP-Llama-3-8B@2@1@1f3a@half@a%b.data": with(func(n *Name) { n.Tags = []Tag{{"a", "b"}} }),
		"meta-llama-SEP-Llama-3-8B@2@1@1f3a@half@3@a%b%c-SEP-d@e%.data": with(func(n *Name) {
			n.Layer, n.Tags = 3, []Tag{{"a", "b%c/d"}, {"e", ""}}
		}),
		"meta-llama-SEP-Llama-3-8B@2@1@1f3a@fp8_e4m3fn.data":                           with(func(n *Name) { n.DType = "fp8_e4m3fn" }),
		"meta-llama-SEP-Llama-3-8B@2@1@" + strings.Repeat("0f", 32) + "@bfloat16.data": with(func(n *Name) { n.Hash, n.DType = strings.Repeat("0f", 32), "bfloat16" }),
		"vllm@meta-llama-SEP-Llama-3-8B@2@1@1f3a.data":                                 with(func(n *Name) { n.OldFormat, n.DType = "vllm", "" }),
		"vllm@meta-llama-SEP-Llama-3-8B@2@1@1f3a@4.data":                               with(func(n *Name) { n.OldFormat, n.DType, n.Layer = "vllm", "", 4 }),
		"vllm@meta-llama-SEP-Llama-3-8B@2@1@1f3a@half.data":                            with(func(n *Name) { n.OldFormat = "vllm" }),
		"vllm@meta-llama-SEP-Llama-3-8B@2@1@1f3a@half@4@a%b.data":                      with(func(n *Name) { n.OldFormat, n.Layer, n.Tags = "vllm", 4, []Tag{{"a", "b"}} }),
		// What was a slash in an older build's name is a hyphen now.
		"meta-llama-Llama-3-8B@2@1@1f3a@half.data": with(func(n *Name) { n.Model = "meta-llama-Llama-3-8B" }),
	} {
		got, ok := ParseName(file)
		if !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", file, got, ok)
		}
		if want.String() != file {
			t.Errorf("%+v is called %s", want, want)
		}
	}
	if got := with(func(n *Name) { n.OldSlashes = true }).String(); got != "meta-llama-Llama-3-8B@2@1@1f3a@half.data" {
		t.Error(got)
	}
	for _, file := range []string{
		"", ".data", "m@2@1@1f3a@half", "m@2@1@1f3a@half.tmp", "m@2@1@1F3A@half.data", "m@2@1@01f3@half@.data", "m@2@1@1f3@.data",
		"m@2@1@00f@half.data", "m@2@1@-0f3a@half.data", "m@2@2@1f3a@half.data", "m@0@0@1f3a@half.data", "m@2@01@1f3a@half.data",
		"@2@1@1f3a@half.data", "m@2@1@1f3a@float16.data", "m@2@1@1f3a@half@x.data", "m@2@1@1f3a@half@007.data", "m@2@1@@half.data",
		"m@2@1@1f3a@half@99999999999.data", "@m@2@1@1f3a.data", "vllm@m@2@1.data", "m@0x02000200@0@0011223344556677.data",
		"m@2@1@" + strings.Repeat("f", 65) + "@half.data",
	} {
		if got, ok := ParseName(file); ok {
			t.Errorf("%q is read as %+v", file, got)
		}
	}
}

func TestNamesThatLMCacheWouldNotRead(t *testing.T) {
	for want, n := range map[string]Name{
		"no name":                   {WorldSize: 1, DType: "half"},
		"has an @":                  {Model: "a@b", WorldSize: 1, DType: "half"},
		`reads as "a/b" what`:       {Model: "a-SEP-b", WorldSize: 1, DType: "half"},
		`reads as "a/SEP/b" what`:   {Model: "a-SEP/SEP-b", WorldSize: 1, DType: "half"},
		`reads as "v/w" what`:       {Model: "m", WorldSize: 1, DType: "half", Tags: []Tag{{"k", "v-SEP-w"}}},
		"worker 2 of 2":             {Model: "m", WorldSize: 2, WorkerID: 2, DType: "half"},
		"none of LMCache's":         {Model: "m", WorldSize: 1, DType: "float16"},
		"layer -2":                  {Model: "m", WorldSize: 1, DType: "half", Layer: -2},
		"character that separates":  {Model: "m", WorldSize: 1, DType: "half", Tags: []Tag{{"a%", "b"}}},
		"character that separates ": {Model: "m", WorldSize: 1, DType: "half", Tags: []Tag{{"a", "b@"}}},
	} {
		if err := n.Check(); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%+v: %v", n, err)
		}
	}
}

func TestObjectNames(t *testing.T) {
	digest := strings.Repeat("0a", 32)
	for file, want := range map[string]ObjectName{
		"a-SEP-b@0x02010201@0@" + digest + ".data":      {Model: "a/b", Rank: 0x02010201, Hash: digest},
		"a-SEP-b@0x02010201@1f@" + digest + ".data":     {Model: "a/b", Rank: 0x02010201, Group: 31, Hash: digest},
		"a-SEP-b@0x02010201@0@" + digest + "@salt.data": {Model: "a/b", Rank: 0x02010201, Hash: digest, Salt: "salt"},
		"a-SEP-b@0x00000000@" + digest + ".data":        {Model: "a/b", Group: NoGroup, Hash: digest},
		"a-SEP-b@0x00000000@" + digest + "@s.data":      {Model: "a/b", Group: NoGroup, Hash: digest, Salt: "s"},
	} {
		got, ok := ParseObjectName(file)
		if !ok || got != want || want.String() != file {
			t.Errorf("%s: %+v, %v; %s", file, got, ok, want)
		}
	}
	for _, file := range []string{
		"", "m@0x02010201@0@" + digest, "m@0x2010201@0@" + digest + ".data", "m@02010201@0@" + digest + ".data", "m@0x0201020G@0@" + digest + ".data",
		"m@0x02010201@0@0a0b0c.data", "m@0x02010201@0@" + digest + "@.data", "m@0x02010201@00@" + digest + ".data", "m@0x02010201.data",
		"m@0x02010201@0@" + digest + "@a@b.data", "@0x02010201@0@" + digest + ".data", "m@0x02010201@0@" + digest + "0.data",
	} {
		if got, ok := ParseObjectName(file); ok {
			t.Errorf("%q is read as %+v", file, got)
		}
	}
}

// Two models never have one name, or a store would find another model's blocks.
func TestModelsThatLookAlike(t *testing.T) {
	if err := (ObjectName{Model: "a-SEP-b"}).Check(); err == nil {
		t.Error("an object of a-SEP-b has the name of one of a/b")
	}
	names := map[string]string{}
	for _, model := range []string{"a/b", "a-SEP-b", "a/SEP-b", "a-SEP/b", "a-SEP-SEP-b", "a//b", "a/-SEP-b", "a-SEP-/b", "-SEP-", "/", "a-b"} {
		n := Name{Model: model, WorldSize: 1, DType: "half", Layer: NoLayer}
		if n.Check() != nil {
			continue
		}
		if other := names[n.String()]; other != "" {
			t.Errorf("%s and %s are both called %s", other, model, n)
		}
		names[n.String()] = model
	}
	if len(names) < 4 {
		t.Errorf("only %v may have names", names)
	}
}

func TestBasePaths(t *testing.T) {
	digest := strings.Repeat("f", 48) + "0000000000000011" // 17 in the last 8 bytes
	for _, c := range []struct {
		hash         string
		paths        int
		want, object int
	}{
		{"7", 4, 3, 3}, {"-7", 4, 3, 3}, {"-8000000000000000", 3, 2, 2}, {"ffffffffffffffff", 10, 5, 5}, {"0", 5, 0, 0},
		{digest, 16, 1, 1}, {digest, 10, 7, 7}, {"10000000000000001", 3, 2, 1},
	} {
		if got := BasePath(c.hash, c.paths); c.hash != digest && got != c.want {
			t.Errorf("%s is in path %d of %d", c.hash, got, c.paths)
		}
		if got := ObjectBasePath(c.hash, c.paths); got != c.object {
			t.Errorf("object %s is in path %d of %d", c.hash, got, c.paths)
		}
	}
}

func TestHashes(t *testing.T) {
	for _, n := range []int64{0, 1, -1, 1 << 62, -1 << 63} {
		size, negative, ok := HashNumber(HashOf(n))
		if !ok || negative != (n < 0) || negative && int64(-size) != n || !negative && int64(size) != n || !IsHash(HashOf(n)) {
			t.Errorf("%d became %s, %d, %v, %v", n, HashOf(n), size, negative, ok)
		}
	}
	if size, negative, ok := HashNumber(HashOfUnsigned(1<<64 - 1)); !ok || negative || size != 1<<64-1 {
		t.Error(size, negative, ok)
	}
	for _, s := range []string{"", "-", "-0", "01", "10000000000000000", "-8000000000000001", "g", "1F", "+1", "1_0"} {
		if n, _, ok := HashNumber(s); ok {
			t.Errorf("%q is the number %d", s, n)
		}
	}
	for s, want := range map[string]bool{strings.Repeat("0a", 32): true, strings.Repeat("0A", 32): false, strings.Repeat("0a", 31): false, "": false} {
		if _, ok := HashDigest(s); ok != want {
			t.Errorf("%q is a digest: %v", s, ok)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, file := range []string{
		"meta-llama-SEP-Llama@2@1@-1f3a@half@3@a%b.data", "vllm@m@1@0@1f@2.data", "m@0x02010201@0@0011223344556677@s.data", "@@@@@.data",
	} {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file string) {
		n, isName := ParseName(file)
		if isName && n.String() != file {
			t.Errorf("%q became %+v and %q", file, n, n)
		}
		o, isObject := ParseObjectName(file)
		if isObject && o.String() != file {
			t.Errorf("%q became %+v and %q", file, o, o)
		}
		if isName && isObject {
			t.Errorf("%q is a chunk and an object", file)
		}
	})
}

func TestSubdirs(t *testing.T) {
	for levels, want := range []string{".", "a1", "a1/b2"} {
		if got := Subdirs("a1b2c3d4e5f60718", levels); got != want {
			t.Errorf("%d levels: %s", levels, got)
		}
	}
	for dir, want := range map[string]bool{"a1": true, "a1/b2": true, "00/ff": true, ".": false, "": false, "a": false, "a1/b": false, "A1": false, "a1/b2/c3": false, "abc": false} {
		if IsSubdir(dir) != want {
			t.Errorf("%q is a directory of objects: %v", dir, !want)
		}
	}
}
