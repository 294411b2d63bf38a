package kvstore

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/rtpkeys"
	"github.com/kv3fs/kv3fs/internal/shellwords"
)

// beginsData is how YAML and JSON begin, and no script: with a key, a bracket, a list or a
// mark.
var beginsData = regexp.MustCompile(`^(?:"[^"]*"|'[^']*'|[^\s="'#&*!|>%@` + "`" + `{}\[\],:]+)\s*:(?:\s|$)|^[\[{%?]|^-(?:\s|$)|^---|^\.\.\.`)

// isScript reports whether a file is variables, arguments or a script, and neither YAML nor
// JSON. The first line with anything in it decides: what follows may look like either.
func isScript(src []byte) bool {
	begun, sets := false, false
	for line := range strings.Lines(string(src)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !begun && beginsData.MatchString(line) {
			return false
		}
		begun = true
		sets = sets || variableLine(line) || slices.ContainsFunc(strings.Fields(line), isArgument)
	}
	return sets
}

// variableLine reports whether a line sets a variable and does nothing else before that.
func variableLine(line string) bool {
	name, _, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "export ")), "=")
	return ok && shellwords.IsVariable(name)
}

func isArgument(word string) bool { return marksRTPLLM(shellwords.RTPVariable(word)) }

// marksRTPLLM reports whether a variable is one that RTP-LLM alone has.
func marksRTPLLM(name string) bool {
	switch name {
	case "REUSE_CACHE", "ENABLE_3FS", "ENABLE_REMOTE_CACHE", "BIZ_NAME", "CHECKPOINT_PATH", "MAX_BLOCK_SIZE_PER_ITEM":
		return true
	}
	return strings.HasPrefix(name, "THREEFS_") || strings.HasPrefix(name, "RECO_") || strings.HasPrefix(name, "KVCM_")
}

// ofRTPLLM reads the environment or the script with which RTP-LLM is started. Of its two tiers
// the one counts that is on.
func ofRTPLLM(src []byte) (c UCMConfig, notes []string, err error) {
	env, err := scriptVariables(string(src))
	if err != nil {
		return c, nil, err
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(env)), marksRTPLLM) {
		return c, nil, errors.New("it has variables or arguments, and none of RTP-LLM's; of other engines, write the file that they configure their storage with")
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if (marksRTPLLM(name) || name == "TP_SIZE") && strings.Contains(env[name], "$") {
			return c, nil, fmt.Errorf("%s is %.60q, and nothing is expanded here; write the value itself", name, env[name])
		}
	}
	if !shellwords.RTPTrue(env["REUSE_CACHE"]) {
		return c, nil, errors.New("REUSE_CACHE is not on, so RTP-LLM keeps no cache; write REUSE_CACHE=1 or --reuse_cache True")
	}
	direct, remote := shellwords.RTPTrue(env["ENABLE_3FS"]), shellwords.RTPTrue(env["ENABLE_REMOTE_CACHE"])
	switch {
	case direct && remote:
		return c, nil, errors.New("ENABLE_3FS and ENABLE_REMOTE_CACHE are both on; leave one of them: ENABLE_3FS opens RtpLlm, ENABLE_REMOTE_CACHE Kvcm")
	case direct:
		var o RtpLlmOptions
		o, notes, err = ReadRTPLLM(env)
		c.StorePipeline, c.RtpLlm = rtpLlmName, &o
	case remote:
		var o KvcmOptions
		o, notes, err = remoteCache(env)
		c.StorePipeline, c.Kvcm = kvcmName, &o
	default:
		err = errors.New("neither ENABLE_3FS nor ENABLE_REMOTE_CACHE is on, so RTP-LLM stores nothing; write ENABLE_3FS=1 for its own tier, or ENABLE_REMOTE_CACHE=1 for KVCM's")
	}
	if text, ok := env["TP_SIZE"]; err == nil && ok {
		n, refused := rtpkeys.Number("TP_SIZE", text)
		if refused != nil {
			err = fmt.Errorf("TP_SIZE %w", refused)
		}
		c.Namespace.TPSize = int(n)
	}
	if err != nil {
		return UCMConfig{}, nil, withoutPackage(err)
	}
	return c, notes, nil
}

// remoteCache reads the variables with which RTP-LLM configures KVCM's SDK.
func remoteCache(env map[string]string) (KvcmOptions, []string, error) {
	if all := rtpkeys.CheckQueries(func(name string) string { return env[name] }); len(all) > 0 {
		return KvcmOptions{}, nil, fmt.Errorf("%s %w", all[0].Name, &all[0].Refusal)
	}
	client := cmp.Or(env["KVCM_CLIENT_CONFIG"], env["RECO_CLIENT_CONFIG"])
	if client != "" {
		has, err := rtpkeys.HasSDKConfig(client)
		if err != nil {
			return KvcmOptions{}, nil, fmt.Errorf("KVCM_CLIENT_CONFIG: %w", err)
		}
		if has {
			return readKVCMVariable("KVCM_CLIENT_CONFIG", client)
		}
	}
	if sdk := env[rtpkeys.ModelSDKConfig]; sdk != "" {
		if _, all := rtpkeys.ReadModelSDKConfig(sdk); len(all) > 0 {
			return KvcmOptions{}, nil, fmt.Errorf("%s %w", all[0].Name, &all[0].Refusal)
		}
		return readKVCMVariable(rtpkeys.ModelSDKConfig, sdk)
	}
	return KvcmOptions{Root: kvcmRoot}, nil, nil // the SDK's defaults
}

func readKVCMVariable(name, text string) (KvcmOptions, []string, error) {
	o, notes, err := ReadKVCM([]byte(text))
	if err != nil {
		err = fmt.Errorf("%s: %w", name, withoutPackage(err))
	}
	return o, notes, err
}

// withoutPackage removes what ReadConfig writes before its own errors.
func withoutPackage(err error) error {
	if text, ok := strings.CutPrefix(err.Error(), "kvstore: "); ok {
		return errors.New(text)
	}
	return err
}

// scriptVariables returns what lines set that have a variable each, or else what the words of a
// script do; arguments prevail.
func scriptVariables(text string) (map[string]string, error) {
	words, err := shellwords.Split(text)
	if err != nil {
		return nil, fmt.Errorf("it %w", err)
	}
	if !slices.ContainsFunc(words, isArgument) {
		env := map[string]string{}
		return env, lineVariables(text, env)
	}
	env := shellwords.Assignments(words)
	for _, a := range shellwords.RTPArguments(words) {
		if !a.HasValue && marksRTPLLM(a.Variable) {
			return nil, fmt.Errorf("%.60s has no value; RTP-LLM's arguments need one, such as True", a.Name)
		}
		if a.HasValue {
			env[a.Variable] = a.Value
		}
	}
	return env, nil
}

// lineVariables reads lines as a container's environment has them, JSON without quotes among
// them, and lines of a script that set a variable. It skips others.
func lineVariables(text string, env map[string]string) error {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if !variableLine(line) {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "export ")), "=")
		if !json.Valid([]byte(value)) || strings.HasPrefix(value, `"`) {
			words, err := shellwords.Split(value)
			if err != nil {
				return fmt.Errorf("%.60s %w", name, err)
			}
			if len(words) > 1 && marksRTPLLM(name) {
				return fmt.Errorf("%.60s is followed by %.60q; write each variable on a line of its own, with quotes around blanks", name, words[1])
			}
			value = strings.Join(words, " ")
		}
		env[name] = value
	}
	return nil
}
