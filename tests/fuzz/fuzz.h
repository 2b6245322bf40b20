/// Shared by the fuzz targets: bytes as a file, and the only accepted way for a reader to refuse them. Single
/// thread.
#pragma once

#include "engine/base/error.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

/// A reader that is fuzzed. Every fuzz_NAME.cpp defines one; main.cpp chooses it by the program's name.
struct FuzzTarget {
    using Run = int (*)(const std::uint8_t* data, std::size_t size);
    using Mutate = std::size_t (*)(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed);
    FuzzTarget(std::string_view name_of_reader, Run run_reader, Mutate mutate_input = nullptr)
        : name(name_of_reader), run(run_reader), mutate(mutate_input) {
        all().push_back(this);
    }
    static std::vector<const FuzzTarget*>& all() {
        static std::vector<const FuzzTarget*> targets;
        return targets;
    }
    std::string_view name;
    Run run;
    Mutate mutate;  ///< null: libFuzzer's own mutations
};

/// A file in memory that holds these bytes.
class MemoryFile {
  public:
    explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz", 0)) {
        if (descriptor_ < 0 ||
            ::write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
            std::abort();
    }
    ~MemoryFile() { ::close(descriptor_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

  private:
    int descriptor_;
};

/// Runs the body. It may throw Error with a one-line message; anything else aborts.
template <class Body>
void expect_error_or_none(Body body) {
    try {
        body();
    } catch (const Error& error) {
        if (std::string_view(error.what()).find('\n') != std::string_view::npos) {
            std::fprintf(stderr, "a message of several lines: %s\n", error.what());
            std::abort();
        }
    }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

/// One element of an input that is a list. Each element is: name '\n' length '\n' bytes.
struct Member {
    std::string name;
    std::string_view bytes;
};

inline std::vector<Member> members_of(std::string_view input) {
    constexpr std::size_t kMost = 40;
    std::vector<Member> members;
    const auto line = [&] {
        const std::size_t end = std::min(input.find('\n'), input.size());
        const std::string_view text = input.substr(0, end);
        input.remove_prefix(std::min(end + 1, input.size()));
        return text;
    };
    while (!input.empty() && members.size() < kMost) {
        Member& member = members.emplace_back();
        member.name = std::string(line());
        const std::string_view length_text = line();
        std::size_t length = 0;
        std::from_chars(length_text.data(), length_text.data() + length_text.size(), length);
        member.bytes = input.substr(0, std::min(length, input.size()));
        input.remove_prefix(member.bytes.size());
    }
    return members;
}

/// Writes an input in the form that members_of() reads.
inline std::string text_of_members(const std::vector<std::pair<std::string, std::string>>& members) {
    std::string text;
    for (const auto& [name, bytes] : members) text += fmt::format("{}\n{}\n{}", name, bytes.size(), bytes);
    return text;
}

/// A temporary folder of files with plain names, removed with the object.
class FuzzFolder {
  public:
    explicit FuzzFolder(const std::string& purpose)
        : path_(std::filesystem::temp_directory_path() /
                ("keyhole-fuzz-" + purpose + "-" + std::to_string(::getpid()))) {
        std::filesystem::create_directories(path_);
    }
    ~FuzzFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    FuzzFolder(const FuzzFolder&) = delete;
    FuzzFolder& operator=(const FuzzFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }

    /// Replaces the folder's files by these. Skips members whose names are not plain file names.
    void fill(const std::vector<Member>& members) const {
        for (const auto& entry : std::filesystem::directory_iterator(path_)) std::filesystem::remove(entry);
        for (const Member& member : members) {
            const std::filesystem::path name = member.name;
            if (name.empty() || name != name.filename() || name == "." || name == ".." ||
                member.name.size() > 100 || member.name.find('\0') != std::string::npos)
                continue;
            std::ofstream(path_ / name, std::ios::binary) << member.bytes;
        }
    }

  private:
    std::filesystem::path path_;
};

}  // namespace keyhole
