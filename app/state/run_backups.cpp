#include "app/state/run_backups.h"

#include "app/base/termination.h"
#include "app/state/annotations.h"
#include "engine/base/crash_message.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/model_name.h"
#include "engine/base/user_folder.h"
#include "engine/base/utf8.h"
#include "engine/trace/row_bytes.h"
#include "engine/trace/spool.h"
#include "engine/trace/spool_folder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <exception>
#include <optional>
#include <string_view>

namespace keyhole {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostLeft = 4;  // so that crashes do not fill the disk
constexpr std::string_view kBegin = "run-", kEnd = ".keyhole.spool", kLast = "last-run.keyhole.spool",
                           kLastTrace = "last-run.keyhole";

/// Returns a name that sorts by date and differs between processes and starts.
std::string spool_name() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::localtime_r(&now, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts);
    return fmt::format("{}{}-{}{}", kBegin, text.data(), ::getpid(), kEnd);
}

/// Returns whether spool_name() could have made the name: only such folders are removed unasked.
bool is_own_name(const fs::path& spool) {
    const std::string name = spool.filename().string();
    if (name.size() <= kBegin.size() + kEnd.size() || !name.starts_with(kBegin) || !name.ends_with(kEnd))
        return false;
    const std::string_view middle =
        std::string_view(name).substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
    return middle.find_first_not_of("0123456789-") == std::string_view::npos;
}

/// Returns the beginning of a text as one short line.
std::string beginning_of(std::string text) {
    constexpr std::size_t kMost = 48;  // characters
    text.erase(0, std::min(text.find_first_not_of(" \n"), text.size()));
    text.erase(text.find_last_not_of(" \n") + 1);
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::size_t end = 0;
    for (std::size_t n = 0; n < kMost && end < text.size(); ++n)
        end += std::max<std::size_t>(utf8_length(std::string_view(text).substr(end)), 1);
    return printable_text(text.substr(0, end)) + (end < text.size() ? "…" : "");
}

std::vector<std::shared_ptr<const LaneInfo>> infos_of(const StepTrace& step) {
    std::vector<std::shared_ptr<const LaneInfo>> infos;
    for (const LaneRecord& lane : step.lanes) infos.push_back(lane.info);
    return infos;
}

}  // namespace

fs::path run_backups_folder() {
    const fs::path state = user_folder(UserFolder::state);
    return state.empty() ? state : state / "runs";
}

RunBackups::RunBackups(fs::path folder, std::size_t most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes) {
    if (folder_.empty()) return;
    find_left();
    try {
        thread_ = std::jthread([this](std::stop_token stop) { write_all(std::move(stop)); });
    } catch (const std::system_error& error) {
        keeps_ = false;
        fault_ = fmt::format("the run is not kept on disk: {}", error.what());
    }
}

RunBackups::~RunBackups() {
    {
        const std::lock_guard lock(mutex_);
        remove_ = std::uncaught_exceptions() == 0;
    }
    thread_.request_stop();
}

void RunBackups::find_left() {
    std::error_code error;
    for (auto entry = fs::directory_iterator(folder_, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (!name.ends_with(kEnd) || name == kLast) continue;
        try {
            (void)FoundSpool(entry->path());
            left_.push_back(entry->path());
        } catch (const Error&) {  // belongs to an open window, or holds no records
            if (is_own_name(entry->path())) remove_spool_without_records(entry->path());
        }
    }
    std::sort(left_.rbegin(), left_.rend());
    const std::vector<fs::path> all = left_;
    std::size_t n_own = 0;
    for (const fs::path& spool : all)
        if (is_own_name(spool) && ++n_own > kMostLeft) discard(spool);
}

std::string RunBackups::words_of(const fs::path& spool) {
    try {
        const std::shared_ptr<const RunInfo> run = run_of_frames(FoundSpool(spool).frames());
        return fmt::format("{}, “{}”", shown_text(model_name(run->model_path)), beginning_of(run->prompt));
    } catch (const Error&) {  // the notice then says what else is known
        return "";
    }
}

void RunBackups::forget(const fs::path& spool) {
    std::erase(left_, fs::path(spool));
}

void RunBackups::discard(const fs::path& spool) {
    try {
        FoundSpool(spool).remove();
    } catch (const Error&) {  // another window has taken it meanwhile
    }
    forget(spool);
}

void RunBackups::update(const StepList& steps) {
    if (folder_.empty() || steps.empty()) return;
    const bool is_new = steps.front()->run->id != run_id_;
    if (is_new) taken_.clear();
    run_id_ = steps.front()->run->id;
    const auto place = [](const auto& step) { return std::pair(step->row, step->branch); };
    // The newest known record comes once more where one of its lanes was named, or where a rewind ends with
    // it: the spool drops what came after it.
    const std::size_t n_both = std::min(taken_.size(), steps.size());
    const bool again =
        n_both > 0 && (taken_.size() > steps.size() || infos_of(*steps[n_both - 1]) != newest_infos_);
    if (taken_.size() == steps.size() && taken_.back() == place(steps.back()) && !again) return;
    // Row and branch identify a record for good but for that. After a rewind, records of the new branch
    // replace those of the old one from the rewound row on.
    std::size_t n_known = 0;
    const std::size_t most_known = n_both - (again ? 1 : 0);
    while (n_known < most_known && taken_[n_known] == place(steps[n_known])) ++n_known;
    taken_.resize(n_known);
    for (std::size_t i = n_known; i < steps.size(); ++i) taken_.push_back(place(steps[i]));
    newest_infos_ = infos_of(*steps.back());
    const std::lock_guard lock(mutex_);
    keeps_ = keeps_ || (is_new && thread_.joinable());  // the disk may have room again
    for (std::size_t i = n_known; keeps_ && i < steps.size(); ++i) {
        waiting_.push_back(steps[i]);
        waiting_bytes_ += row_bytes(*steps[i]);
    }
    thin_waiting();
    changed_.notify_all();
}

/// Where the disk is slower than the run, the oldest waiting records lose what the spool would lose.
void RunBackups::thin_waiting() {
    for (auto step = waiting_.begin(); waiting_bytes_ > most_bytes_ && step != waiting_.end(); ++step) {
        const std::size_t bytes = row_bytes(**step);
        if (bytes == 0) continue;
        *step = without_rows(**step);
        waiting_bytes_ -= bytes;
    }
}

std::size_t RunBackups::waiting_bytes() const {
    const std::lock_guard lock(mutex_);
    return waiting_bytes_;
}

void RunBackups::keep_as_last(bool keeps) {
    const std::lock_guard lock(mutex_);
    is_last_ = keeps;
}

fs::path RunBackups::last() const {
    std::error_code ignored;
    if (folder_.empty()) return {};
    // Opening a spool makes the trace of it.
    if (fs::exists(folder_ / kLast / "frames.bin", ignored)) return folder_ / kLast;
    return fs::exists(folder_ / kLastTrace, ignored) ? folder_ / kLastTrace : fs::path();
}

void RunBackups::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.empty() && !busy_; });
}

fs::path RunBackups::spool() const {
    const std::lock_guard lock(mutex_);
    return spool_;
}

std::string RunBackups::take_fault() {
    const std::lock_guard lock(mutex_);
    return std::exchange(fault_, "");
}

void RunBackups::write_all(std::stop_token stop) {
    guard_stack();
    std::optional<SpoolFolder> spool;
    std::uint64_t run_id = 0;
    std::size_t n_bytes = 0, most = most_bytes_;
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !waiting_.empty(); })) {
        const std::shared_ptr<const StepTrace> step = std::move(waiting_.front());
        waiting_.pop_front();
        waiting_bytes_ -= row_bytes(*step);
        busy_ = true;
        lock.unlock();
        std::string fault;
        try {
            if (!spool) {
                if (fs::create_directories(folder_))
                    fs::permissions(folder_, fs::perms::owner_all);  // others may not read the prompts
                spool.emplace(folder_ / spool_name());
            }
            if (step->run->id != run_id) {
                spool->begin();
                run_id = step->run->id;
                n_bytes = 0;
                most = most_bytes_;
                set_termination_note(
                    fmt::format("the run is kept on disk: the window offers it at the next start, and "
                                "`keyhole replay {}` makes a trace of it",
                                spool->path().string()));
            }
            n_bytes += spool->append(*step);
            if (n_bytes > most) {
                n_bytes = spool->thin(most / 2);
                most = std::max(most, 2 * n_bytes);
            }
        } catch (const std::exception& error) {
            fault = error.what();
        }
        lock.lock();
        busy_ = false;
        if (spool) spool_ = spool->path();
        if (!fault.empty()) {
            fault_ = fmt::format("the run is no longer kept on disk, so a crash would lose it: {}", fault);
            keeps_ = false;
            waiting_.clear();
            waiting_bytes_ = 0;
        }
        changed_.notify_all();
    }
    if (!remove_ || !spool) return;
    set_termination_note("");
    if (is_last_ && keeps_ && spool->has_frames() && run_id == run_id_)
        keep_last(*spool);
    else
        spool->remove();
}

/// Keeps the run as the last one. If that fails, it stays under its own name, and the next start offers it.
void RunBackups::keep_last(SpoolFolder& spool) const {
    const fs::path last = folder_ / kLast, before = folder_ / "run-before-last";
    std::error_code ignored;
    try {
        std::optional<FoundSpool> old;
        if (fs::exists(last, ignored)) old.emplace(last);  // throws where another window has it
        if (old) fs::rename(last, before);
        try {
            spool.put_aside(last);
        } catch (...) {
            fs::rename(before, last, ignored);
            throw;
        }
        old.reset();
        if (fs::exists(before, ignored)) FoundSpool(before).remove();
        fs::remove(folder_ / kLastTrace, ignored);
        fs::remove(annotations_file(folder_ / kLastTrace), ignored);
    } catch (const std::exception&) {
        if (fs::exists(last, ignored)) remove_spool_without_records(last);
    }
}

}  // namespace keyhole
