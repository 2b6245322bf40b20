#include "engine/device/prover.h"

#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "engine/base/fnv.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/user_folder.h"
#include "engine/device/open_cuda.h"
#include "engine/device/proof.h"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>

namespace keyhole {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A device that has not said what it is for so long is shown as one that starts.
constexpr std::chrono::seconds kSlowStart{4};
constexpr const char* kStarting = "the start of the device";
constexpr const char* kCompiling = "the driver compiles the kernels for this device; this happens once";

// The child prints lines that begin with these words: the device; the share that is done and what comes next.
constexpr std::string_view kDeviceMark = "proof device ", kPartMark = "proof part ",
                           kNoneMark = "proof none ";

/// Distinguishes builds of the module.
std::string hash_of(std::string_view bytes) {
    return fmt::format("{:016x}", fnv1a(bytes));
}

std::string module_hash(const fs::path& module) {
    const MappedFile file(module);
    return hash_of({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

std::string file_part(std::string text) {
    for (char& c : text)
        if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
    return text.empty() ? "unknown" : text.substr(0, 80);
}

/// Verdicts on devices that could not say what they are hold for the kernel's driver, until the next start of
/// the machine, which may mend them.
std::string driver_of_kernel() {
    std::string all;
    for (const char* path : {"/sys/module/nvidia/version", "/proc/sys/kernel/random/boot_id"}) {
        std::ifstream file(path);
        std::string text;
        file >> text;
        all += text + " ";
    }
    return hash_of(all);
}

fs::path verdict_file(const ProofSetup& setup, const std::string& hash, const DeviceIdentity& device) {
    const std::string of = device.uuid.empty()
                               ? fmt::format("device{}-{}", setup.device, driver_of_kernel())
                               : fmt::format("{}-{}", file_part(device.uuid), file_part(device.driver));
    return setup.folder / fmt::format("{}-{}-v{}.json", hash, of, kProofVersion);
}

/// JSON has no infinity.
Json number(double value) {
    return std::isfinite(value) ? Json(value) : Json("infinite");
}
double number_of(const Json& value) {
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
}

Json json_of(const DeviceIdentity& device) {
    return {{"name", device.name}, {"uuid", device.uuid}, {"driver", device.driver}};
}
DeviceIdentity identity_of(const Json& json) {
    return {printable_text(json.value("name", "")), printable_text(json.value("uuid", "")),
            printable_text(json.value("driver", ""))};
}

Json json_of(const std::vector<SelfTestLine>& lines) {
    Json out = Json::array();
    for (const SelfTestLine& line : lines)
        out.push_back({{"what", line.kernel},
                       {"where", line.shape},
                       {"worst", number(line.worst)},
                       {"tolerance", number(line.tolerance)},
                       {"passed", line.passed},
                       {"failure", line.failure}});
    return out;
}
std::vector<SelfTestLine> lines_of(const Json& json) {
    std::vector<SelfTestLine> out;
    for (const Json& line : json)
        out.push_back({printable_text(line.at("what").get<std::string>()),
                       printable_text(line.at("where").get<std::string>()), number_of(line.at("worst")),
                       number_of(line.at("tolerance")), line.at("passed").get<bool>(),
                       printable_text(line.at("failure").get<std::string>())});
    return out;
}

/// Returns a file of ours as JSON; nullopt where there is none, or it is damaged.
std::optional<Json> read_json(const fs::path& path) {
    std::error_code error;
    if (!fs::exists(path, error)) return std::nullopt;
    try {
        const std::string text = read_text_file(path, 1 << 22);
        if (!is_shallow_json(text)) return std::nullopt;
        Json json = json_of_text(text);
        if (json.is_object() && json.at("passed").is_boolean() && json.value("version", 0) == kProofVersion)
            return json;
    } catch (const std::exception&) {
    }
    return std::nullopt;
}

std::optional<TimedStep> step_of(const Json& json) {
    const auto step = json.find("step_ms");
    if (step == json.end() || step->is_null()) return std::nullopt;
    return TimedStep{step->at("device").get<double>(), step->at("cpu").get<double>()};
}

DeviceVerdict verdict_of(const Json& json, const fs::path& file) {
    DeviceVerdict verdict;
    verdict.passed = json.at("passed").get<bool>();
    verdict.step = step_of(json);
    verdict.index = json.value("index", 0);
    verdict.device = identity_of(json.value("device", Json::object()));
    verdict.reason = printable_text(json.value("reason", ""));
    verdict.report = file;
    verdict.seconds = json.value("seconds", 0.0);
    verdict.lines = lines_of(json.value("lines", Json::array()));
    return verdict;
}

std::optional<DeviceVerdict> read_verdict(const fs::path& path) {
    try {
        if (const std::optional<Json> json = read_json(path)) {
            DeviceVerdict verdict = verdict_of(*json, path);
            if (verdict.step || !verdict.passed) return verdict;
        }
    } catch (const std::exception&) {  // another type where a text should be
    }
    return std::nullopt;
}

/// Returns a kept verdict on the module for which `wanted` holds.
std::optional<DeviceVerdict> find_verdict(const ProofSetup& setup,
                                          const std::function<bool(const DeviceVerdict&)>& wanted) {
    if (setup.folder.empty()) return std::nullopt;
    const std::string hash = module_hash(setup.module);
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(setup.folder, error)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(hash) || !name.ends_with(".json")) continue;
        if (auto verdict = read_verdict(entry.path()); verdict && wanted(*verdict)) return verdict;
    }
    return std::nullopt;
}

/// Writes the verdict with what the child wrote and printed. A folder that cannot be written means no more
/// than that the proof is repeated.
void keep(DeviceVerdict& verdict, const ProofSetup& setup, const std::string& hash, const Json& lines,
          const std::string& printed) {
    if (setup.folder.empty()) return;
    const Json json = {{"version", kProofVersion}, {"module", hash},
                       {"index", setup.device},    {"device", json_of(verdict.device)},
                       {"passed", verdict.passed}, {"step_ms", json_of(verdict.step)},
                       {"reason", verdict.reason}, {"seconds", verdict.seconds},
                       {"lines", lines},           {"printed", printable_text(printed, true)}};
    const fs::path file = verdict_file(setup, hash, verdict.device);
    try {
        std::error_code error;
        fs::create_directories(setup.folder, error);
        const fs::path fresh = file.string() + fmt::format(".{}", ::getpid());
        write_text_file(fresh, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
        fs::rename(fresh, file);
        verdict.report = file;
    } catch (const std::exception&) {
    }
}

/// The reports of the child so far.
struct Said {
    std::optional<DeviceIdentity> device;
    std::optional<std::string> none;  ///< why there is no device
    double share = 0;
    std::string part;
};

Said read_said(const std::string& output) {
    Said said;
    for (std::size_t at = 0; at < output.size();) {
        const std::size_t end = output.find('\n', at);
        if (end == std::string::npos) break;  // not complete yet
        const std::string_view line = std::string_view(output).substr(at, end - at);
        at = end + 1;
        if (line.starts_with(kDeviceMark)) {
            try {
                said.device = identity_of(json_of_text(line.substr(kDeviceMark.size())));
            } catch (const std::exception&) {
            }
        } else if (line.starts_with(kNoneMark)) {
            said.none = printable_text(line.substr(kNoneMark.size()));
        } else if (line.starts_with(kPartMark)) {
            const std::string_view rest = line.substr(kPartMark.size());
            const std::size_t blank = std::min(rest.find(' '), rest.size());
            int per_mille = 0;
            std::from_chars(rest.data(), rest.data() + blank, per_mille);
            said.share = std::clamp(per_mille / 1000.0, 0.0, 1.0);
            said.part = printable_text(rest.substr(std::min(blank + 1, rest.size())));
        }
    }
    return said;
}

/// Returns what the child printed besides its reports, for the file to attach.
std::string others(const std::string& output) {
    std::string text;
    for (std::size_t at = 0; at < output.size();) {
        const std::size_t end = std::min(output.find('\n', at), output.size());
        const std::string_view line = std::string_view(output).substr(at, end - at);
        if (!line.starts_with("proof ")) text += std::string(line) + "\n";
        at = end + 1;
    }
    return text;
}

/// Tells whether a child that has said nothing yet works: the driver compiles PTX in it, for minutes on a
/// slow processor. One that hangs takes no processor time.
class Opening {
  public:
    using Clock = std::chrono::steady_clock;
    /// Call it often until the child says something.
    void look(const ChildProcess& child, Clock::time_point now) {
        const double cpu = child.cpu_seconds();
        if (cpu < cpu_ + 0.05) return;
        cpu_ = cpu;
        last_work_ = now;
    }
    bool works(Clock::time_point now) const { return now - last_work_ < std::chrono::seconds(2); }
    Clock::time_point last_work() const { return last_work_; }

  private:
    double cpu_ = 0;
    Clock::time_point last_work_{};
};

/// A file that only this proof writes.
class ReportFile {
  public:
    ReportFile() {
        std::string name = (fs::temp_directory_path() / "keyhole-proof-XXXXXX").string();
        const int file = ::mkstemp(name.data());
        if (file < 0)
            fail(ErrorCode::io, "cannot make {}: {}; set TMPDIR to a folder that can be written", name,
                 std::strerror(errno));
        ::close(file);
        path = name;
    }
    ~ReportFile() {
        std::error_code error;
        fs::remove(path, error);
    }
    ReportFile(const ReportFile&) = delete;
    ReportFile& operator=(const ReportFile&) = delete;
    fs::path path;
};

}  // namespace

ProofSetup proof_setup(int device) {
    ProofSetup setup;
    setup.module = cuda_module_path();
    setup.device = device;
    if (const fs::path cache = user_folder(UserFolder::cache); !cache.empty())
        setup.folder = cache / "proofs";
    return setup;
}

bool driver_may_be_here() {
    if (const char* named = std::getenv("KEYHOLE_CUDA_MODULE"); named != nullptr && *named != '\0')
        return true;
    // Files of the driver on a desktop or server, under Windows, and on a Jetson.
    return std::ranges::any_of(
        std::array{"/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg", "/dev/nvhost-ctrl-gpu"},
        [](const char* path) {
            std::error_code error;
            return fs::exists(path, error);
        });
}

std::optional<DeviceVerdict> kept_verdict(const ProofSetup& setup, const DeviceIdentity& device) {
    if (setup.folder.empty()) return std::nullopt;
    return read_verdict(verdict_file(setup, module_hash(setup.module), device));
}

bool any_device_taken(const ProofSetup& setup) {
    return find_verdict(setup, [](const DeviceVerdict& verdict) { return verdict.is_taken(); }).has_value();
}

std::optional<DeviceVerdict> kept_refusal(const ProofSetup& setup) {
    return find_verdict(setup, [&](const DeviceVerdict& verdict) {
        return !verdict.is_taken() && verdict.index == setup.device;
    });
}

DeviceVerdict prove_device(const ProofSetup& setup,
                           const std::function<bool(double share, const std::string& what)>& progress) {
    using Clock = std::chrono::steady_clock;
    const std::string hash = module_hash(setup.module);
    if (!setup.again)
        if (auto sick = kept_verdict(setup, DeviceIdentity{})) return *sick;
    const fs::path program = setup.program.empty() ? keyhole_program() : setup.program;
    const ReportFile report;
    const auto begin = Clock::now();
    ChildProcess child({program.string(), "selftest", "--backend", "cuda", "--device",
                        std::to_string(setup.device), "--proof", report.path.string()},
                       {{"KEYHOLE_CUDA_MODULE", fs::absolute(setup.module).string()}});
    Said said;
    auto last_word = begin;
    std::size_t n_printed = 0;
    std::optional<int> status;
    bool hung = false, compiles = false;
    Opening opening;
    while (!status) {
        status = child.wait_for(std::chrono::milliseconds(50));
        const auto now = Clock::now();
        const bool opens = !said.device && said.part.empty();
        if (opens) opening.look(child, now);
        compiles = opens && opening.works(now) && now - begin > kSlowStart;
        if (child.n_printed() != n_printed) {
            n_printed = child.n_printed();
            last_word = now;
            const Said more = read_said(child.output());
            if (more.device && !said.device && !setup.again)
                if (auto known = kept_verdict(setup, *more.device)) return *known;
            const std::optional<DeviceIdentity> device = more.device ? more.device : said.device;
            said = more;
            said.device = device;  // its line may have left the end of the output that is kept
        }
        const bool is_slow = !said.device && now - begin > kSlowStart;
        if (progress && !progress(said.share, !said.part.empty() || !is_slow ? said.part
                                              : compiles                     ? kCompiling
                                                                             : kStarting))
            fail(ErrorCode::cancelled, "the proof of the CUDA device was stopped");
        const auto last_sign = opens ? std::max(last_word, opening.last_work()) : last_word;
        hung = !status && (now - last_sign > setup.silence || now - begin > setup.most);
        if (hung) break;
    }
    DeviceVerdict verdict;
    verdict.is_new = true;
    verdict.index = setup.device;
    verdict.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    verdict.device = said.device.value_or(DeviceIdentity{});
    if (said.none) {  // no verdict on any device: a driver may come
        verdict.reason = *said.none;
        verdict.available = false;
        return verdict;
    }
    const std::string at = said.part.empty() ? std::string("when the device was opened") : "at " + said.part;
    Json lines = Json::array();
    const std::optional<Json> written = hung ? std::nullopt : read_json(report.path);
    if (status == 127 && !said.device && said.part.empty())
        fail(ErrorCode::io, "{} does not run, so that it cannot prove the CUDA device", program.string());
    if (hung && compiles) {  // nothing is known of the device, and the next time the driver may go on
        verdict.reason =
            fmt::format("its driver had not compiled the kernels after {:.0f} s", verdict.seconds);
        return verdict;
    }
    if (hung) {
        verdict.reason = fmt::format("it hung {} and was stopped after {:.0f} s", at, verdict.seconds);
    } else if (*status > 128 || !written) {
        verdict.reason = *status > 128 ? fmt::format("the process crashed (signal {}) {}", *status - 128, at)
                                       : fmt::format("the process ended with status {} {}", *status, at);
    } else {
        lines = written->at("lines");
        verdict.lines = lines_of(lines);
        verdict.step = step_of(*written);
        verdict.passed = written->at("passed").get<bool>() && verdict.step;
        verdict.reason = printable_text(written->value("reason", ""));
        if (!verdict.passed && verdict.reason.empty()) verdict.reason = "it timed no step";
    }
    keep(verdict, setup, hash, lines, others(child.output()));
    return verdict;
}

void prove_as_child(int device, const fs::path& report) {
    const auto say = [](std::string_view mark, std::string_view text) {
        const std::string line = fmt::format("{}{}\n", mark, text);
        (void)std::fwrite(line.data(), 1, line.size(), stdout);
        (void)std::fflush(stdout);
    };
    std::string reason;
    std::shared_ptr<CudaDevice> opened = open_cuda_device(cuda_module_path(), device, reason);
    if (opened == nullptr) return say(kNoneMark, reason);
    say(kDeviceMark, json_of(opened->identity()).dump(-1, ' ', true, Json::error_handler_t::replace));
    const ProofProgress progress = [&](double share, const std::string& what) {
        say(kPartMark, fmt::format("{} {}", static_cast<int>(1000 * share), what));
    };
    std::vector<SelfTestLine> lines = run_proof(*opened, progress);
    const auto all_passed = [&] {
        return std::ranges::all_of(lines, [](const SelfTestLine& line) { return line.passed; });
    };
    std::optional<TimedStep> step;
    if (all_passed()) try {
            step = time_step(*opened, progress);
        } catch (const Error& error) {
            lines.push_back({"a timed step", "64 MB of weights", std::numeric_limits<double>::infinity(), 0,
                             false, error.what()});
        }
    say(kPartMark, "1000 the end");
    opened.reset();
    const Json json = {{"version", kProofVersion},
                       {"passed", all_passed()},
                       {"step_ms", json_of(step)},
                       {"reason", proof_failure(lines)},
                       {"lines", json_of(lines)}};
    write_text_file(report, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

nlohmann::json json_of(const std::optional<TimedStep>& step) {
    return step ? Json{{"device", step->device_ms}, {"cpu", step->cpu_ms}} : Json();
}

}  // namespace keyhole
