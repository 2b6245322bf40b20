#include "engine/live/engine.h"

#include "engine/backend/backend.h"
#include "engine/base/crash_message.h"
#include "engine/base/error.h"
#include "engine/live/command_queue.h"
#include "engine/live/new_run.h"
#include "engine/live/step_rate.h"
#include "engine/policy/lane_spec.h"
#include "engine/session/look_ahead.h"
#include "engine/session/session.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <thread>

namespace keyhole {

namespace {

using Clock = std::chrono::steady_clock;

/// Replays that take less than kAnnounceAfter are not announced; longer ones report at intervals of
/// kReportEvery.
constexpr auto kAnnounceAfter = std::chrono::milliseconds(200), kReportEvery = std::chrono::milliseconds(50);

bool has_code(const std::exception& error, ErrorCode code) {
    const auto* known = dynamic_cast<const Error*>(&error);
    return known != nullptr && known->code() == code;
}

/// Returns why a command replays rows.
std::string work_text(const Command& command) {
    if (const auto* rewind = std::get_if<Rewind>(&command))
        return fmt::format("going back to step {}", rewind->row);
    if (const auto* branch = std::get_if<GoToBranch>(&command))
        return fmt::format("going to branch {}", branch->id);
    if (const auto* set = std::get_if<SetLane>(&command)) {
        if (needs_repeats(set->spec.policy))
            return fmt::format("lane {} reads the prompt a second time", set->index);
        if (needs_future(set->spec.policy)) return fmt::format("lane {} reads the text ahead", set->index);
        return fmt::format("lane {} runs again from the prompt", set->index);
    }
    if (const auto* restore = std::get_if<RestoreLane>(&command))
        return fmt::format("lane {} runs again from the prompt", restore->index);
    if (const auto* fork = std::get_if<ForkLane>(&command))
        return fmt::format("the copy of lane {} runs from the prompt", fork->index);
    return "the new lane runs from the prompt";
}

/// Returns whether a command sets which lanes there are, and how: a start brings that along.
bool sets_lanes(const Command& command) {
    return std::holds_alternative<SetLane>(command) || std::holds_alternative<AddLane>(command) ||
           std::holds_alternative<RemoveLane>(command) || std::holds_alternative<RestoreLane>(command) ||
           std::holds_alternative<SetFollow>(command);
}

template <class... Handlers>
struct Overloaded : Handlers... {
    using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;  // Clang before 17 does not deduce it

}  // namespace

struct Engine::Impl {
    const BackendOptions options;
    const std::function<void()> wake;
    Recorder recorder;
    CommandQueue queue;

    mutable std::mutex mutex;  // guards status, model and device_backend
    EngineStatus status;
    std::shared_ptr<const Model> model;
    std::shared_ptr<Backend> device_backend;

    // Used only by the engine thread:
    std::shared_ptr<Backend> backend;
    std::unique_ptr<Session> session;
    int rows_left = 0;          // to decode before stopping; -1: no limit
    bool to_answer = false;     // these rows are an answer: see Engine::answer()
    int pause_at = 0;           // text length in tokens at which an unlimited run pauses
    bool was_answered = false;  // the answer was complete at the last row
    bool answers_open = false;  // lanes may have no complete answer of their own
    int n_turns_begun = 0;      // Session::n_turns_begun() at the last row
    StepRate rate;
    bool quit = false;
    RequestId in_hand = 0;     // the request that is being handled
    std::string stopped_work;  // why a command had no effect; goes to the status once the stop is handled

    // Of the window's thread: see Together.
    int n_together = 0;
    RequestId first_command = 0;

    std::jthread thread;  // last: it joins before the other members are destroyed

    Impl(BackendOptions o, std::function<void()> w, std::size_t budget)
        : options(o), wake(std::move(w)), recorder(budget) {}

    /// Called on the window's thread.
    void push(Request request) {
        const bool is_command = std::holds_alternative<Command>(request);
        const bool can_follow = is_command || std::holds_alternative<StepRows>(request);
        const RequestId id = queue.push(std::move(request), can_follow ? first_command : 0);
        if (n_together > 0 && is_command && first_command == 0) first_command = id;
    }

    template <class Change>
    void set_status(Change change) {
        {
            const std::lock_guard lock(mutex);
            change(status);
            status.has_session = session != nullptr;
        }
        if (wake) wake();
    }

    void loop() {
        while (!quit) {
            if (answers_wait()) {
            } else if (rows_left == 0) {
                queue.wait();
            } else if (rate.limited() && !to_answer) {
                queue.wait_until(rate.due());
            }
            while (auto queued = queue.pop()) {
                in_hand = queued->id;
                if (queued->follows != 0 && was_refused(queued->follows))
                    set_status([&](EngineStatus& s) { s.note_refusal(in_hand); });
                else
                    handle(queued->request);
                set_status([&](EngineStatus& s) { s.handled = in_hand; });
            }
            if (quit) continue;
            if (rows_left != 0 && (to_answer || rate.is_due())) decode_row();
            if (answers_wait() && queue.empty()) extend_answers();
        }
    }

    bool was_refused(RequestId id) {
        const std::lock_guard lock(mutex);
        return status.was_refused(id);
    }

    /// Notes in the status that the request in hand has no effect.
    void refuse(EngineStatus& s) const {
        s.refused = in_hand;
        s.note_refusal(in_hand);
    }

    /// Returns whether the lanes' own answers can go on now. While rows are decoded, no prompt is processed.
    bool answers_wait() const {
        return answers_open && session != nullptr && (rows_left == 0 || !session->answers_need_prompt());
    }

    bool answers_need_stop() const {
        return answers_open && rows_left != 0 && session->answers_need_prompt();
    }

    void extend_answers() {
        try {
            answers_open = session->extend_answers([&](double) { return queue.empty(); });
        } catch (const std::exception& error) {
            if (has_code(error, ErrorCode::cancelled)) return;  // a request came, and goes first
            answers_open = false;
            set_status([&](EngineStatus& s) {
                s.answering = false;
                s.message = fmt::format("the lanes' own answers ended: {}", error.what());
            });
            if (end_after(error)) stop(EnginePhase::failed, error.what());
            return;
        }
        publish_answers();
    }

    void publish_answers() {
        auto answers = std::make_shared<const std::vector<LaneAnswer>>(session->answers());
        set_status([&](EngineStatus& s) {
            s.answers = std::move(answers);
            s.answering = answers_open;
            s.answers_need_stop = answers_need_stop();
        });
    }

    void handle(Request& request) {
        std::visit(
            Overloaded{[&](StartRun& start) { start_run(start); }, [&](Play&) { run_rows(-1); },
                       [&](Answer&) { run_to_answer(); }, [&](Stop&) { halt(); },
                       [&](StepRows& step) { run_rows(rows_after(step.n_rows)); },
                       [&](SetSpeed& speed) { rate.limit(speed.rows_per_s); },
                       [&](Command& command) { apply(command); },
                       [&](RequestCounterfactual& ask) { answer(ask); },
                       [&](RequestRanks& ask) { answer(ask); },
                       [&](TrySettings& wanted) { try_settings(wanted); }, [&](Quit&) { quit = true; }},
            request);
    }

    /// A run that another one is to replace, until that has processed its prompt.
    struct Replaced {
        std::shared_ptr<Backend> backend;
        std::unique_ptr<Session> session;  // destroyed before its backend
        EngineStatus status;
        std::shared_ptr<const Model> model;
        std::shared_ptr<Backend> device_backend;
        bool answers_open = false;
    };

    Replaced take_current() {
        const std::lock_guard lock(mutex);
        return {backend, std::move(session), status, model, device_backend, answers_open};
    }

    /// Goes on with the run before, since the prompt of the new one was stopped. Nobody reads about it where
    /// another start waits.
    void bring_back(Replaced& before, const std::string& why) {
        backend = std::move(before.backend);
        session = std::move(before.session);
        answers_open = before.answers_open;
        n_turns_begun = session->n_turns_begun();
        set_status([&](EngineStatus& s) {
            model = std::move(before.model);
            device_backend = std::move(before.device_backend);
            const RequestId handled = s.handled;
            s = std::move(before.status);
            s.handled = handled;
            if (!queue.is_superseded()) {
                refuse(s);
                s.message = s.refusal_message = why + "; the run before it is back";
            }
            if (s.phase == EnginePhase::running) s.phase = EnginePhase::idle;
        });
        stopped_work = status.message;
    }

    /// Starts a run in place of the current one, which goes on if the new one is refused.
    void start_run(StartRun& start) {
        const EnginePhase before = status.phase;  // this thread alone writes it
        NewRun next;
        try {
            next = prepare(start);
        } catch (const std::exception& error) {
            end_after(error);  // a failed device has lost the current run too
            if (session == nullptr) rows_left = 0;
            set_status([&](EngineStatus& s) {
                s.phase = session == nullptr ? EnginePhase::failed : before;
                s.message = s.refusal_message = error.what();
                refuse(s);
            });
            return;
        }
        rows_left = 0;
        stopped_work.clear();
        Replaced replaced = take_current();
        answers_open = false;
        if (next.backend != nullptr) backend = std::move(next.backend);
        session = std::move(next.session);
        n_turns_begun = 0;
        set_status([&, run = session->run_spec()](EngineStatus& s) mutable {
            model = next.model;
            device_backend = backend->on_device() ? backend : nullptr;
            EngineStatus fresh;
            fresh.handled = s.handled;
            fresh.refused = s.refused;
            fresh.refusals = s.refusals;
            fresh.refusal_message = s.refusal_message;
            fresh.phase = EnginePhase::prefill;
            fresh.message = next.notice;
            fresh.backend = backend->name();
            fresh.precision = backend->precision_text();
            fresh.run = std::move(run);
            s = std::move(fresh);
        });
        try {
            recorder.push(session->prefill([&, at = Clock::now()](double done) mutable {
                if (const auto now = Clock::now(); now >= at) {
                    at = now + kReportEvery;
                    set_status([&](EngineStatus& s) { s.progress = done; });
                }
                return !queue.stops_work();
            }));
            answers_open = start.run.answer_end.has_value();
            set_status([&, memory = memory_use()](EngineStatus& s) {
                s.phase = EnginePhase::idle;
                s.answering = answers_open;
                s.run_id = session->run().id;
                s.lane_ids = session->lane_ids();
                s.progress = 1;
                s.memory = memory;
            });
        } catch (const std::exception& error) {
            session.reset();
            const bool had_run = replaced.session != nullptr;
            if (had_run && has_code(error, ErrorCode::cancelled)) return bring_back(replaced, error.what());
            replaced.session.reset();  // before its backend
            replaced = {};             // its memory is needed for the new one
            end_after(error);
            if (had_run && has_code(error, ErrorCode::no_memory)) return start_run(start);
            if (has_code(error, ErrorCode::cancelled)) stopped_work = error.what();
            stop(has_code(error, ErrorCode::cancelled) ? EnginePhase::idle : EnginePhase::failed,
                 error.what());
        }
    }

    NewRun prepare(const StartRun& start) {
        CurrentRun current{.model = nullptr, .backend = backend.get()};
        {
            const std::lock_guard lock(mutex);
            current.model = model;
        }
        BackendOptions how = options;
        how.precision = start.precision.value_or(options.precision);
        const auto show = [&](double share) {
            set_status([&](EngineStatus& s) {
                s.phase = EnginePhase::loading;
                s.message = "loading " + start.model_folder.string();
                s.progress = share;
            });
        };
        return prepare_run(current, how, start.model_folder, start.run, start.new_backend, show);
    }

    /// Returns how many rows are to be decoded once n more are asked for.
    int rows_after(int n) const {
        const std::int64_t sum = std::int64_t{std::max(rows_left, 0)} + n;
        return static_cast<int>(std::min<std::int64_t>(sum, std::numeric_limits<int>::max()));
    }

    void run_rows(int n_rows) {
        if (session == nullptr) return refuse_run();
        if (session->finished()) {
            stop(EnginePhase::finished, session->finish_reason());
            return;
        }
        rows_left = n_rows;
        to_answer = false;
        pause_at = session->run().config.n_ctx;
        while (pause_at <= session->next_row()) pause_at *= 2;
        was_answered = session->answered();
        rate.begin();
        set_status([](EngineStatus& s) {
            s.phase = EnginePhase::running;
            s.steps_per_s = 0;
            s.message.clear();
        });
    }

    void run_to_answer() {
        if (session == nullptr) return refuse_run();
        const auto& end = session->run_spec().answer_end;
        if (!end || session->answered()) return;
        run_rows(end->max_tokens);
        to_answer = rows_left != 0;
    }

    /// Reports that there is no session to continue: its prompt was cancelled, or it failed and keeps that
    /// message.
    void refuse_run() {
        set_status([](EngineStatus& s) {
            if (s.phase != EnginePhase::failed) s.message = "no session is running; start one first";
            s.phase = EnginePhase::failed;
        });
    }

    void stop(EnginePhase phase, const std::string& message) {
        rows_left = 0;
        set_status([&](EngineStatus& s) {
            end_rate(s);
            if (phase != EnginePhase::idle || s.phase == EnginePhase::running || !message.empty())
                s.phase = phase;
            s.message = message;
        });
    }

    /// Performs the user's stop. The message of a command that it cancelled stays, through further stops too.
    void halt() {
        rows_left = 0;
        const std::string why = std::exchange(stopped_work, "");
        set_status([&](EngineStatus& s) {
            end_rate(s);
            const bool ran = s.phase == EnginePhase::running;
            if (ran) s.phase = EnginePhase::idle;
            if (ran || !why.empty()) s.message = why;
        });
    }

    /// Returns the progress callback of a replay: it shows the work once it takes a while, and cancels it on
    /// request.
    std::function<bool(double)> work(std::string what) {
        return [this, what = std::move(what), next = Clock::now() + kAnnounceAfter](double done) mutable {
            if (queue.stops_work()) return false;
            if (const auto now = Clock::now(); now >= next) {
                next = now + kReportEvery;
                set_status([&](EngineStatus& s) {
                    s.work = what;
                    s.progress = done;
                });
            }
            return true;
        };
    }

    /// Ends a command or question. error: not null if it had no effect. publish: writes its changes to the
    /// status, if there is still a session. It only moves what is ready, since the window waits meanwhile.
    template <class Publish>
    void done(const std::exception* error, Publish publish) {
        // A new run takes the place of this one and has its own settings, or the engine ends: nothing was
        // refused.
        if (error != nullptr && has_code(*error, ErrorCode::cancelled) && queue.is_superseded())
            return set_status([](EngineStatus& s) { s.work.clear(); });
        const std::string fault = error == nullptr ? "" : error->what();
        if (error != nullptr && has_code(*error, ErrorCode::cancelled)) stopped_work = fault;
        if (error != nullptr && end_after(*error)) stop(EnginePhase::failed, fault);
        set_status([&](EngineStatus& s) {
            if (session != nullptr) publish(s);
            s.work.clear();
            s.message = fault;
            if (error == nullptr) return;
            refuse(s);
            s.refusal_message = fault;
        });
    }

    void apply(const Command& command) {
        if (session == nullptr && sets_lanes(command)) return;  // see EngineStatus::has_session
        try {
            if (session == nullptr)
                fail(ErrorCode::wrong_use, "'{}' needs a running session; start one first",
                     format_command(command));
            session->apply(command, work(work_text(command)));
            if (std::holds_alternative<SetLane>(command))  // as the log has it: with positions in place
                rename_record(std::get<SetLane>(session->log().back().command));
            if (turns_back(command)) turned_back();
            answers_open = session->run_spec().answer_end.has_value();
            done(nullptr, changes_of(command));
            if (answers_open) publish_answers();  // without those of other settings
        } catch (const std::exception& error) {
            done(&error, changes_of(command));
        }
    }

    /// Returns what writes to the status how the session is after a command.
    std::function<void(EngineStatus&)> changes_of(const Command& command) const {
        if (session == nullptr) return [](EngineStatus&) {};
        return [turns = turns_back(command), memory = memory_use(), run = session->run_spec(),
                ids = session->lane_ids(), branch = session->branch(),
                others = session->other_branches()](EngineStatus& s) mutable {
            s.memory = memory;
            s.run = std::move(run);
            s.lane_ids = std::move(ids);
            s.branch = branch;
            s.other_branches = std::move(others);
            s.ranks.reset();  // of other settings, or of another row
            // The row that the answer is about may come again with another history.
            if (turns) s.counterfactual.reset();
        };
    }

    /// Gives the newest record of a lane the name that a command gave to the lane, so that a finished run can
    /// be named. Other changes come with the next record.
    void rename_record(const SetLane& set) {
        const StepList steps = recorder.snapshot().steps;
        if (steps.empty() || steps.back()->row != session->next_row() - 1) return;
        auto step = std::make_shared<StepTrace>(*steps.back());
        for (LaneRecord& record : step->lanes) {
            if (record.info->id != session->lane_ids().at(to_index(set.index))) continue;
            const LaneSpec recorded = parse_stored_lane_spec(record.info->spec);
            if (recorded.name == set.spec.name || !same_settings(recorded, set.spec)) return;
            auto info = std::make_shared<LaneInfo>(*record.info);
            LaneSpec effective = parse_stored_lane_spec(info->effective);
            effective.name = set.spec.name;
            info->spec = format_lane_spec(set.spec);
            info->effective = format_lane_spec(effective);
            record.info = std::move(info);
            return recorder.push(std::move(step));
        }
    }

    void try_settings(const TrySettings& wanted) {
        try {
            if (session == nullptr) fail(ErrorCode::wrong_use, "no session is running; start one first");
            session->try_settings(wanted.index, wanted.spec);
        } catch (const std::exception& error) {
            return done(&error, [](EngineStatus&) {});
        }
        answers_open = session->run_spec().answer_end.has_value();
        if (answers_open) publish_answers();
    }

    void answer(const RequestCounterfactual& ask) {
        try {
            if (session == nullptr) fail(ErrorCode::wrong_use, "no session is running; start one first");
            auto result = std::make_shared<const Counterfactual>(session->counterfactual(
                ask.index, ask.position,
                work(ask.n_tokens == 1
                         ? fmt::format("lane {} runs once more with token {}", ask.index, ask.position)
                         : fmt::format("lane {} runs once more with tokens {} to {}", ask.index, ask.position,
                                       ask.position + ask.n_tokens - 1)),
                ask.row, ask.n_tokens));
            done(nullptr, [&](EngineStatus& s) { s.counterfactual = std::move(result); });
        } catch (const std::exception& error) {
            done(&error, [](EngineStatus&) {});
        }
    }

    void answer(const RequestRanks& ask) {
        // What waits goes first: the window asks again, or asks for something else.
        if (session == nullptr || !queue.empty()) return;
        auto result = std::make_shared<Ranks>();
        try {
            *result = session->ranks(ask.asked);
        } catch (const std::exception& error) {
            if (end_after(error)) return stop(EnginePhase::failed, error.what());
            *result = {.asked = ask.asked, .row = session->next_row() - 1, .why_not = error.what()};
        }
        set_status([&](EngineStatus& s) { s.ranks = std::move(result); });
    }

    /// Follows a session that went back to an earlier row: updates the recorder, decodes the rows to the end
    /// of a branch, and corrects the phase, since a finished run may continue.
    void turned_back() {
        recorder.rewind(session->next_row() - 1);
        while (session->catching_up() && !queue.stops_work()) decode_one();
        if (session->catching_up()) stopped_work = stopped_on_the_way();
        rate.hurry();
        if (rows_left == 0 && session->finished())
            stop(EnginePhase::finished, session->finish_reason());
        else if (rows_left == 0)
            set_status([](EngineStatus& s) { s.phase = EnginePhase::idle; });
    }

    std::string stopped_on_the_way() const {
        return fmt::format("stopped at step {} on the way to the end of branch {}; Space continues",
                           session->next_row() - 1, session->branch());
    }

    /// Decodes one row for the readers. Returns false if there was none: the run is finished, or a command
    /// before the row was cancelled.
    bool decode_one() {
        const auto step =
            session->catching_up()
                ? session->step(work(fmt::format("on the way to the end of branch {}", session->branch())))
                : session->step();
        if (step == nullptr) return false;
        recorder.push(step);
        if (std::exchange(n_turns_begun, session->n_turns_begun()) != session->n_turns_begun()) {
            answers_open = true;
            publish_answers();
        }
        if (wake) wake();
        return true;
    }

    void decode_row() {
        try {
            const bool on_the_way = session->catching_up();
            const bool came = decode_one();
            if (on_the_way)
                set_status([run = session->run_spec(), ids = session->lane_ids()](EngineStatus& s) mutable {
                    s.run = std::move(run);
                    s.lane_ids = std::move(ids);
                    s.work.clear();
                });
            if (session->catching_up() && queue.stops_work()) stopped_work = stopped_on_the_way();
            if (!came && !session->finished()) return;  // the stop is handled next
            if (rows_left > 0) --rows_left;
            count_row();
            if (const bool needs = answers_need_stop(); needs != status.answers_need_stop)
                set_status([&](EngineStatus& s) { s.answers_need_stop = needs; });
            if (session->finished())
                stop(EnginePhase::finished, session->finish_reason());
            else if (rows_left == 0)
                stop(EnginePhase::idle, "");
            else if (rows_left < 0 && session->next_row() == pause_at)
                stop(EnginePhase::idle, paused_text());
            else if ((rows_left < 0 || to_answer) && !std::exchange(was_answered, session->answered()) &&
                     was_answered)
                stop(EnginePhase::idle, "the answer is complete; Space continues");
        } catch (const std::exception& error) {
            end_after(error);
            set_status([](EngineStatus& s) { s.work.clear(); });
            stop(EnginePhase::failed, error.what());
        }
    }

    std::string paused_text() const {
        const int n_ctx = session->run().config.n_ctx;
        return fmt::format(
            "paused at {} tokens, {} the context that the model was trained on; Space continues", pause_at,
            pause_at == n_ctx ? "which fill" : "beyond");
    }

    /// Ends the session if the device failed, since its caches are lost; the records stay. Returns whether it
    /// did.
    bool end_after(const std::exception& error) {
        if (!has_code(error, ErrorCode::device)) return false;
        session.reset();
        backend.reset();  // the next run starts with a new one
        const std::lock_guard lock(mutex);
        device_backend.reset();
        return true;
    }

    EngineMemory memory_use() const {
        EngineMemory use;
        if (session == nullptr) return use;
        use.on_device = backend->on_device();
        use.weights = backend->weight_bytes();
        use.caches = session->cache_bytes();
        use.checkpoints = session->checkpoint_bytes();
        return use;
    }

    /// Gives a run that ends its speed, if it was long enough for one.
    void end_rate(EngineStatus& of) const {
        if (of.phase != EnginePhase::running) return;
        if (const auto steps_per_s = rate.at_end()) of.steps_per_s = *steps_per_s;
    }

    /// Counts a step. Once a second, and after the last step, the status has the speed and the memory.
    void count_row() {
        rate.count();
        const auto steps_per_s = rate.each_second();
        if (!steps_per_s && rows_left != 0) return;
        const EngineMemory memory = memory_use();
        const std::lock_guard lock(mutex);
        status.memory = memory;
        if (steps_per_s) status.steps_per_s = *steps_per_s;
    }
};

Engine::Engine(BackendOptions options, std::function<void()> wake, std::size_t row_budget_bytes)
    : impl_(std::make_unique<Impl>(options, std::move(wake), row_budget_bytes)) {
    try {
        impl_->thread = std::jthread([impl = impl_.get()] {
            guard_stack();
            impl->loop();
        });
    } catch (const std::system_error& error) {
        fail(ErrorCode::no_memory,
             "cannot start the engine's thread: {}; end other programs or raise ulimit -u", error.what());
    }
}

Engine::~Engine() {
    impl_->queue.push(Quit{});
}

void Engine::start(std::filesystem::path model_folder, RunSpec run, bool new_backend,
                   std::optional<Precision> precision) {
    impl_->push(StartRun{std::move(model_folder), std::move(run), new_backend, precision});
}
void Engine::play() {
    impl_->push(Play{});
}
void Engine::answer() {
    impl_->push(Answer{});
}
void Engine::stop(bool work) {
    impl_->push(Stop{work});
}
void Engine::step(int n_rows) {
    impl_->push(StepRows{n_rows});
}
void Engine::set_speed(double rows_per_second) {
    impl_->push(SetSpeed{rows_per_second});
}
void Engine::send(Command command) {
    impl_->push(std::move(command));
}

void Engine::request_counterfactual(int index, int position, int row, int n_tokens) {
    impl_->push(RequestCounterfactual{index, position, row, n_tokens});
}

void Engine::request_ranks(RanksRequest asked) {
    impl_->push(RequestRanks{std::move(asked)});
}

void Engine::try_settings(int index, std::optional<LaneSpec> spec) {
    impl_->push(TrySettings{index, std::move(spec)});
}

Engine::Together::Together(Engine& engine) : engine_(engine) {
    ++engine_.impl_->n_together;
}

Engine::Together::~Together() {
    if (--engine_.impl_->n_together == 0) engine_.impl_->first_command = 0;
}

Recorder& Engine::recorder() {
    return impl_->recorder;
}

EngineStatus Engine::status() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->status;
}

RequestId Engine::last_request() const {
    return impl_->queue.last_id();
}

std::shared_ptr<Backend> Engine::device_backend() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->device_backend;
}
std::shared_ptr<const Model> Engine::model() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->model;
}

}  // namespace keyhole
