package gds

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// request is a request to testdata/backend.py.
type request struct {
	Do      string          `json:"do"`
	Root    string          `json:"root,omitempty"`
	Weka    bool            `json:"weka,omitempty"`
	Older   bool            `json:"older,omitempty"`
	CuFile  bool            `json:"cufile,omitempty"`
	Model   string          `json:"model"`
	World   int             `json:"world"`
	Worker  int             `json:"worker"`
	Hash    json.RawMessage `json:"hash"`
	DType   string          `json:"dtype"`
	Layer   *int            `json:"layer,omitempty"`
	Tags    [][2]string     `json:"tags,omitempty"`
	Shape   []int64         `json:"shape"`
	Groups  []any           `json:"groups,omitempty"`
	Format  int             `json:"fmt"`
	Payload string          `json:"payload"`
}

// backend runs the replay of LMCache's backend.
func backend(t *testing.T, requests []request) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	var in bytes.Buffer
	for _, r := range requests {
		if err := json.NewEncoder(&in).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	run := exec.CommandContext(t.Context(), python, "testdata/backend.py")
	run.Stdin = &in
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// files returns the files below a directory by their path there.
func files(t *testing.T, root string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		all[rel], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What LMCache writes has the names and the bytes that this package makes, for headers of older
// and newer releases.
func TestFilesOfLMCache(t *testing.T) {
	layer := 3
	payload := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 32)
	encoded := base64.StdEncoding.EncodeToString(payload)
	plain := request{Do: "write", Model: "meta-llama/Llama-3.1-8B", World: 2, Worker: 1, DType: "bfloat16", Shape: []int64{2, 1, 8, 8}, Format: 1, Payload: encoded}
	header := Header{DType: "BF16", Shape: []int64{2, 1, 8, 8}, Bytes: 256, Format: 1}
	with := func(change func(*request)) request {
		c := plain
		change(&c)
		return c
	}
	grouped := header
	grouped.Groups = []Group{{"BF16", []int64{2, 1, 8, 8}}}
	mixed := Header{DType: "F8E4M3FN", Shape: []int64{8, 16}, Bytes: 256, Format: 6, Groups: []Group{{"F8E4M3FN", []int64{8, 16}}, {"F32", []int64{8, 4}}}}
	cases := []struct {
		name   string
		chunk  request
		hash   string
		key    string
		dir    string
		header Header
	}{
		{"plain", plain, "1311768467463790320", "meta-llama/Llama-3.1-8B@2@1@123456789abcdef0@bfloat16", "13/11", header},
		{"negative", plain, "-1311768467463790320", "meta-llama/Llama-3.1-8B@2@1@-123456789abcdef0@bfloat16", "-1/31", header},
		{"unsigned", plain, "18446744073709551615", "meta-llama/Llama-3.1-8B@2@1@ffffffffffffffff@bfloat16", "18/44", header},
		{"one digit", plain, "7", "meta-llama/Llama-3.1-8B@2@1@7@bfloat16", "7", header},
		{"two digits", plain, "-7", "meta-llama/Llama-3.1-8B@2@1@-7@bfloat16", "-7", header},
		{"three digits", plain, "255", "meta-llama/Llama-3.1-8B@2@1@ff@bfloat16", "25/5", header},
		{"groups", with(func(c *request) { c.Groups = []any{[]any{[]int{2, 1, 8, 8}, "bfloat16"}} }), "12345", "meta-llama/Llama-3.1-8B@2@1@3039@bfloat16", "12/34", grouped},
		{"mixed groups", with(func(c *request) {
			c.DType, c.Shape, c.Format = "float8_e4m3fn", []int64{8, 16}, 6
			c.Groups = []any{[]any{[]int{8, 16}, "float8_e4m3fn"}, []any{[]int{8, 4}, "float32"}}
		}), "12345", "meta-llama/Llama-3.1-8B@2@1@3039@fp8_e4m3fn", "12/34", mixed},
		{"older", with(func(c *request) { c.Older = true }), "12345", "meta-llama/Llama-3.1-8B@2@1@3039@bfloat16", "12/34", header},
		{"Weka", with(func(c *request) { c.Weka, c.CuFile = true, true }), "12345", "meta-llama/Llama-3.1-8B@2@1@3039@bfloat16", "12/34", header},
		{"layer and tags", with(func(c *request) { c.Layer, c.Tags = &layer, [][2]string{{"user", "Zoë & co/x"}} }), "12345",
			"meta-llama/Llama-3.1-8B@2@1@3039@bfloat16@3@user%Zoë & co/x", "12/34", header},
	}
	var all []request
	for i := range cases {
		c := &cases[i].chunk
		c.Root, c.Hash = t.TempDir(), json.RawMessage(cases[i].hash)
		all = append(all, *c)
	}
	backend(t, all)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			number, _ := new(big.Int).SetString(c.hash, 10)
			dir, err := Dir(number.Text(16))
			if err != nil || dir != c.dir {
				t.Errorf("directory %s, %v", dir, err)
			}
			raw, err := c.header.Encode()
			if err != nil {
				t.Fatal(err)
			}
			name := Name{Key: c.key, Weka: c.chunk.Weka}
			side := name
			side.Kind = Side
			found := files(t, c.chunk.Root)
			if got := found[filepath.Join(dir, name.String())]; !bytes.Equal(got, append(raw[:len(raw):len(raw)], payload...)) {
				t.Errorf("the data file differs; there are %q\n%q\n%q", keysOf(found), got, raw)
			}
			if got := found[filepath.Join(dir, side.String())]; !bytes.Equal(got, raw) || len(found) != 2 {
				t.Errorf("the side file differs; there are %q", keysOf(found))
			}
			if h, err := ParseHeader(raw); err != nil || h.FileBytes() != HeaderBytes+256 {
				t.Errorf("%+v, %v", h, err)
			}
			for _, n := range []Name{name, side} {
				if back, ok := ParseName(n.String()); !ok || back != n {
					t.Errorf("%q became %+v", n, back)
				}
			}
		})
	}
}

func keysOf(all map[string][]byte) (names []string) {
	for name := range all {
		names = append(names, name)
	}
	return names
}
