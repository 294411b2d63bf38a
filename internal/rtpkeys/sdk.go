package rtpkeys

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"

	"github.com/kv3fs/kv3fs/internal/pyyaml"
	"github.com/kv3fs/kv3fs/internal/spelling"
)

const (
	// Mount is where RTP-LLM and KVCM's SDK look for the 3FS. DirectRoot is the directory on
	// it of RTP-LLM's own tier, Root that of the SDK.
	Mount      = "/3fs/stage/3fs"
	DirectRoot = Mount + "/rtp_llm"
	Root       = Mount + "/" + rootDir
	rootDir    = "kv_manager"
)

// SDK is what the JSON that configures KVCM's SDK says.
type SDK struct {
	Root     string
	Instance string
	Threads  int
	Queue    int
	// Unused are the keys, of any level, that say how the SDK moves data, not where it is.
	Unused []string
	// Skipped says of backends, by their place in the list, why the SDK or a 3FS does not have
	// them.
	Skipped []string
}

// ReadSDK reads the list of the SDK's backends, the SDK's configuration with
// sdk_backend_configs in it, or a client's with sdk_config and instance_id. A key that is
// unknown or out of range is an error.
func ReadSDK(src []byte) (SDK, error) {
	top, err := decode(src)
	if err != nil {
		return SDK{}, err
	}
	s := SDK{Root: Root}
	switch top := top.(type) {
	case []any:
		err = s.backends(top)
	case map[string]any:
		if sdk, ok := top["sdk_config"]; ok {
			err = s.client(top, sdk)
		} else {
			err = s.sdk(top, "")
		}
	default:
		err = errors.New("it is neither an object nor a list of backends")
	}
	return s, err
}

// HasSDKConfig reports whether a client's configuration has the SDK's in it.
func HasSDKConfig(client string) (bool, error) {
	decoded, err := decode([]byte(client))
	if err != nil {
		return false, err
	}
	top, ok := decoded.(map[string]any)
	if !ok {
		return false, errors.New("it is no JSON object")
	}
	_, has := top["sdk_config"]
	return has, nil
}

func decode(src []byte) (top any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(src))
	decoder.UseNumber()
	if err := decoder.Decode(&top); err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("something follows the JSON; remove it")
	}
	return top, nil
}

// client reads a client's configuration. Most of it is for the manager.
func (s *SDK) client(top map[string]any, sdk any) error {
	if id, ok := top["instance_id"]; ok {
		text, isText := id.(string)
		if !isText || text == "" {
			return fmt.Errorf("instance_id is %s; write a text", pyyaml.Describe(id))
		}
		s.Instance = text
	}
	object, ok := sdk.(map[string]any)
	if !ok {
		return errors.New("sdk_config is no object")
	}
	return s.sdk(object, "sdk_config.")
}

func (s *SDK) sdk(top map[string]any, where string) error {
	for _, key := range slices.Sorted(maps.Keys(top)) {
		var err error
		switch value := top[key]; key {
		case "thread_num":
			err = whole(value, limits{1, mostThreads}, &s.Threads)
		case "queue_size":
			err = whole(value, limits{1, mostQueued}, &s.Queue)
		case "timeout_config":
			s.Unused = append(s.Unused, where+key)
		case "sdk_backend_configs":
			list, ok := value.([]any)
			if !ok {
				return fmt.Errorf("%s%s is no list", where, key)
			}
			err = s.backends(list)
		default:
			return unknown(where, key, "thread_num", "queue_size", "timeout_config", "sdk_backend_configs")
		}
		if err != nil {
			return fmt.Errorf("%s%s%w", where, key, err)
		}
	}
	return nil
}

func unknown(where, key string, known ...string) error {
	hint := ""
	if near := spelling.Nearest(key, known, 1); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %s?", near[0])
	}
	return fmt.Errorf("%s%.60s is unknown%s", where, key, hint)
}

// backends reads the backends. The last one of a type counts, as in the SDK.
func (s *SDK) backends(list []any) error {
	for i, entry := range list {
		backend, ok := entry.(map[string]any)
		if !ok {
			return fmt.Errorf("[%d] is no object", i)
		}
		switch kind, _ := backend["type"].(string); kind {
		case "hf3fs":
			if err := s.hf3fs(backend); err != nil {
				return fmt.Errorf("[%d].%w", i, err)
			}
		case "3fs":
			s.Skipped = append(s.Skipped, fmt.Sprintf("[%d] has the type 3fs, which the SDK skips: its defaults apply, %s", i, Root))
		case "":
			return fmt.Errorf("[%d] has no type; write hf3fs", i)
		default:
			s.Skipped = append(s.Skipped, fmt.Sprintf("[%d] has no effect here: %.40s is another kind of storage", i, kind))
		}
	}
	return nil
}

// hf3fs reads the backend that moves data to a 3FS.
func (s *SDK) hf3fs(backend map[string]any) error {
	mount, root := Mount, rootDir
	var size int
	for _, key := range slices.Sorted(maps.Keys(backend)) {
		value := backend[key]
		var err error
		switch key {
		case "type":
		case "mountpoint":
			err = nonEmpty(value, &mount)
		case "root_dir":
			err = nonEmpty(value, &root)
		case "read_iov_size", "write_iov_size":
			err = whole(value, limits{1, mostBytes}, &size)
			s.Unused = append(s.Unused, key)
		case "read_iov_block_size", "write_iov_block_size":
			err = whole(value, limits{0, mostBytes}, &size)
			s.Unused = append(s.Unused, key)
		case "sdk_log_file_path", "sdk_log_level":
			if _, ok := value.(string); !ok {
				err = fmt.Errorf(" is %s; write a text", pyyaml.Describe(value))
			}
			s.Unused = append(s.Unused, key)
		case "spec_byte_sizes_per_block":
			s.Unused = append(s.Unused, key)
		default:
			return unknown("", key, "type", "mountpoint", "root_dir", "read_iov_size", "write_iov_size", "read_iov_block_size", "write_iov_block_size", "sdk_log_file_path", "sdk_log_level")
		}
		if err != nil {
			return fmt.Errorf("%s%w", key, err)
		}
	}
	if !path.IsAbs(mount) {
		return fmt.Errorf("mountpoint is %.60q; write an absolute path", mount)
	}
	s.Root = Join(mount, root)
	return nil
}

// Join joins a root directory to a mount as the engines do: an absolute one replaces it.
func Join(mount, dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join(mount, dir)
}

func nonEmpty(value any, to *string) error {
	text, ok := value.(string)
	if !ok || text == "" {
		return fmt.Errorf(" is %s; write a path", pyyaml.Describe(value))
	}
	*to = text
	return nil
}

func whole(value any, is limits, to *int) error {
	n, ok := pyyaml.Whole(value)
	if !ok || n < is.least || n > is.most {
		return fmt.Errorf(" is %s; write a whole number from %d to %d", pyyaml.Describe(value), is.least, is.most)
	}
	*to = int(n)
	return nil
}
