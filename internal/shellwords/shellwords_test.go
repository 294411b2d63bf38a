package shellwords

import (
	"slices"
	"testing"
)

func TestSplit(t *testing.T) {
	for text, want := range map[string][]string{
		"":                              nil,
		"a b\tc\nd;e":                   {"a", "b", "c", "d", "e"},
		"A='x y' --b=\"z \\\" $c\"":     {"A=x y", "--b=z \" $c"},
		"a \\\n b # c 'd\ne f#g '' \\#": {"a", "b", "e", "f#g", "", "#"},
		`A=[{"type":"3fs"}]`:            {"A=[{type:3fs}]"},
		`'[{"type":"3fs"}]'`:            {`[{"type":"3fs"}]`},
	} {
		if got, err := Split(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, open := range []string{"'", `"`, `a="b\"`, "a 'b\n"} {
		if got, err := Split(open); err == nil {
			t.Errorf("%q: %q", open, got)
		}
	}
}

func TestIsVariable(t *testing.T) {
	for name, want := range map[string]bool{"TP_SIZE": true, "ENABLE_3FS": true, "_": true, "": false, "3FS": false, "tp_size": false, "A.B": false, "A-B": false} {
		if IsVariable(name) != want {
			t.Errorf("%q: want %v", name, want)
		}
	}
}

func TestRTPArguments(t *testing.T) {
	words, err := Split(`TP_SIZE=2 python -m rtp_llm --reuse_cache True --enable-3fs=1 --threefs_x --kvcm_model_sdk_config '{}' --9 --`)
	if err != nil {
		t.Fatal(err)
	}
	want := []RTPArgument{
		{"--reuse_cache", "REUSE_CACHE", "True", true},
		{"--enable-3fs", "ENABLE_3FS", "1", true},
		{"--threefs_x", "THREEFS_X", "", false},
		{"--kvcm_model_sdk_config", "RECO_MODEL_SDK_CONFIG", "{}", true},
	}
	if got := RTPArguments(words); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if set := Assignments(words); len(set) != 1 || set["TP_SIZE"] != "2" {
		t.Errorf("%v", set)
	}
}
