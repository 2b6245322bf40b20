/// A live run of the demo model without a window: two lanes, four rows decoded. The test's thread is the
/// window thread; the engine has its own.
#pragma once

#include "app/actions/action_table.h"
#include "engine/base/index.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/wakes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace keyhole::testing {

class LiveRun : public ::testing::Test {
  protected:
    LiveRun() : app({}, wakes.callback()) {
        app.run.setup.model_folder = reference::source_folder().string() + "/assets/models/keyhole-base";
        app.run.setup.prompt =
            "The code of the gate is 4821. The cat sat on the mat and the dog lay by the door of the old "
            "house near the "
            "river. What is the code of the gate?";
        app.run.setup.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=12")};
        app.run.lane_editor.reset(app.run.setup.lanes, true);  // all lanes follow lane 0
        app.start();
        settle();
        run_action(app, "step 4");
        settle();
    }
    void settle() {
        ASSERT_TRUE(wakes.wait_until([&] {
            app.refresh();
            app.maps.complete = true;
            return app.idle();
        })) << app.run.status.message;
    }
    int token_at(int position) const { return app.run.history.lanes()[0].tokens[to_index(position)]; }
    std::string last_command() const {
        return app.run.status.run.commands.empty()
                   ? ""
                   : format_command(app.run.status.run.commands.back().command);
    }
    reference::Wakes wakes;
    AppState app;
};

}  // namespace keyhole::testing
