package keys

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var qwen = Namespace{
	Model: "Qwen/QwQ-32B", Revision: "976055f", DType: "bfloat16", BlockTokens: 128, Layers: 64, TPSize: 8, TPRank: 3,
}

// decode is the inverse of canonical: a text that can be decoded is unambiguous.
func decode(text []byte) (ns Namespace, err error) {
	in := bytes.NewReader(text)
	read := func(n int) []byte {
		b := make([]byte, n)
		if k, _ := in.Read(b); k < n && err == nil {
			err = errors.New("cut short")
		}
		return b
	}
	read(len("kv3fs namespace 1"))
	for _, s := range []*string{&ns.Model, &ns.Revision, &ns.DType, &ns.KVDType, &ns.Format, &ns.LoRA, &ns.Salt} {
		*s = string(read(int(binary.LittleEndian.Uint32(read(4)))))
	}
	for _, n := range []*int{&ns.BlockTokens, &ns.Layers, &ns.TPSize, &ns.TPRank, &ns.PPSize, &ns.PPRank, &ns.CPSize, &ns.CPRank} {
		*n = int(binary.LittleEndian.Uint64(read(8)))
	}
	if in.Len() > 0 {
		err = errors.New("bytes are left over")
	}
	return ns, err
}

func drawNamespace(t *rapid.T) Namespace {
	// There are few letters, so that namespaces often differ only in where a field ends.
	text := rapid.StringOfN(rapid.SampledFrom([]rune("ab\x00\x01")), 0, 4, -1)
	number := rapid.IntRange(0, 300)
	return Namespace{
		Model: text.Draw(t, "model"), Revision: text.Draw(t, "revision"), DType: text.Draw(t, "dtype"),
		KVDType: text.Draw(t, "kv dtype"), Format: text.Draw(t, "format"), LoRA: text.Draw(t, "lora"), Salt: text.Draw(t, "salt"),
		BlockTokens: number.Draw(t, "block tokens"), Layers: number.Draw(t, "layers"),
		TPSize: number.Draw(t, "tp size"), TPRank: number.Draw(t, "tp rank"),
		PPSize: number.Draw(t, "pp size"), PPRank: number.Draw(t, "pp rank"),
		CPSize: number.Draw(t, "cp size"), CPRank: number.Draw(t, "cp rank"),
	}
}

func TestNoTwoNamespacesHaveOneText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := drawNamespace(t)
		got, err := decode(canonical(ns))
		if err != nil || got != ns.normal() {
			t.Fatalf("%+v became %+v, %v", ns, got, err)
		}
	})
}

// Moving text from one field to the next makes another namespace.
func TestFieldsDoNotRunIntoEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := qwen
		ns.KVDType, ns.Format, ns.LoRA, ns.Salt = "fp8", "NHD", "a", "b"
		fields := []*string{&ns.Model, &ns.Revision, &ns.DType, &ns.KVDType, &ns.Format, &ns.LoRA, &ns.Salt}
		i := rapid.IntRange(0, len(fields)-2).Draw(t, "field")
		before, whole := ns.Fingerprint(), *fields[i]+*fields[i+1]
		was := len(*fields[i])
		cut := rapid.IntRange(0, len(whole)).Filter(func(n int) bool { return n != was }).Draw(t, "cut")
		*fields[i], *fields[i+1] = whole[:cut], whole[cut:]
		if ns.Fingerprint() == before {
			t.Fatalf("%+v has the fingerprint of another namespace", ns)
		}
	})
}

// This test finds a field that was added and forgotten in the canonical text.
func TestEveryFieldCounts(t *testing.T) {
	before := qwen.Fingerprint()
	for i := range reflect.TypeFor[Namespace]().NumField() {
		ns := qwen
		switch field := reflect.ValueOf(&ns).Elem().Field(i); field.Kind() {
		case reflect.String:
			field.SetString(field.String() + "x")
		case reflect.Int:
			field.SetInt(field.Int() + 2)
		default:
			t.Fatalf("a field of kind %s", field.Kind())
		}
		if ns.Fingerprint() == before || ns.Key([]byte("id")) == qwen.Key([]byte("id")) {
			t.Errorf("%s changes nothing", reflect.TypeFor[Namespace]().Field(i).Name)
		}
	}
}

func TestSpellingsThatMeanTheSame(t *testing.T) {
	same := func(a, b Namespace, want bool) {
		t.Helper()
		if got := a.Fingerprint() == b.Fingerprint(); got != want {
			t.Errorf("%+v and %+v: same is %v", a, b, got)
		}
	}
	a := Namespace{Model: "m", DType: "bfloat16", BlockTokens: 16}
	b := a
	b.TPSize, b.PPSize, b.CPSize, b.KVDType, b.DType = 1, 1, 1, "auto", "torch.bfloat16"
	same(a, b, true)
	b.KVDType = "torch.bfloat16"
	same(a, b, true)
	b.KVDType = "fp8_e4m3"
	same(a, b, false)
	b = a
	b.Model = "M"
	same(a, b, false)
	b = a
	b.DType = "BFloat16"
	same(a, b, false)
}

func TestKeyOfALongID(t *testing.T) {
	id := bytes.Repeat([]byte{7}, 100)
	f := qwen.Fingerprint()
	sum := sha256.Sum256([]byte("kv3fs id 1" + string(f[:]) + string(id)))
	if got := qwen.Key(id); got != Key(sum[:16]) {
		t.Errorf("%s, not %x", got, sum[:16])
	}
}

func TestNamespaceJSON(t *testing.T) {
	text, err := json.Marshal(qwen)
	if err != nil {
		t.Fatal(err)
	}
	var got Namespace
	if err := json.Unmarshal(text, &got); err != nil || got != qwen {
		t.Errorf("%s became %+v, %v", text, got, err)
	}
}

func TestCheckNamesTheFault(t *testing.T) {
	if err := qwen.Check(); err != nil {
		t.Error(err)
	}
	for want, spoil := range map[string]func(*Namespace){
		"has no model":                      func(ns *Namespace) { ns.Model = "" },
		"block_tokens is 0":                 func(ns *Namespace) { ns.BlockTokens = 0 },
		"block_tokens is -1":                func(ns *Namespace) { ns.BlockTokens = -1 },
		"at most 1048576":                   func(ns *Namespace) { ns.BlockTokens = 1 << 30 },
		"layers is -1":                      func(ns *Namespace) { ns.Layers = -1 },
		"tp_size is -8":                     func(ns *Namespace) { ns.TPSize = -8 },
		"tp_rank is 8; with a tp_size of 8": func(ns *Namespace) { ns.TPRank = 8 },
		"pp_rank is 1; with a pp_size of 0 it must be from 0 to 0": func(ns *Namespace) { ns.PPRank = 1 },
		"cp_rank is -1": func(ns *Namespace) { ns.CPRank = -1 },
	} {
		ns := qwen
		spoil(&ns)
		if err := ns.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}
